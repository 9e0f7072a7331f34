"""Before an upgrade: every run that waits, for what, and which release and actions it began with. Reads only."""

from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand

from operations.connectors.registry import ACTIONS
from operations.models import Operation
from operations.states import FINAL
from runs.models import AgentRun
from runs.states import TERMINAL


class Command(BaseCommand):
    help = "List the runs that wait, before an upgrade: each goes on under its own release, or says what it needs."

    def handle(self, *args: Any, **options: Any) -> None:
        waiting = AgentRun.objects.exclude(status__in=TERMINAL).exclude(blocked_on=[])
        rows = waiting.select_related("tenant", "release").order_by("tenant__slug", "id")
        kinds: Counter[str] = Counter()
        for run in rows.iterator(500):
            kinds.update(run.blocked_on)
            release = run.release.digest.rpartition(":")[2][:8]
            self.stdout.write(
                f"{run}  {run.tenant.slug}  {run.agent}  release {release}  waits for {', '.join(run.blocked_on)}"
            )
        self.stdout.write(
            ", ".join(f"{count} for {kind}" for kind, count in sorted(kinds.items())) or "Nothing waits."
        )
        for action, version, count in _other_versions():
            self.stdout.write(
                f"{count} open operations are {action} version {version}, which is not here: people are asked anew."
            )


def _other_versions() -> list[tuple[str, int, int]]:
    """Open operations whose action this release has in another version, or has not."""
    open_ones = Operation.objects.exclude(status__in=sorted(FINAL)).values_list("action", "action_version")
    found = Counter(open_ones)
    here = {action.name: action.version for action in ACTIONS.values()}
    return [(*kind, count) for kind, count in sorted(found.items()) if here.get(kind[0]) != kind[1]]
