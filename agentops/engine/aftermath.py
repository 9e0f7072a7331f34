"""What others must know of a run's end: its children end, its parent is told, the next of its conversation begins.

The run's own end is one commit; this follows in commits of its own, each of which may be repeated. Whoever ended the run
does it at once, and whatever died in between is found by the next look of any driver.
"""

from contextlib import suppress
from uuid import UUID

from agentops.audit.entries import SYSTEM
from agentops.kernel.ids import show
from agentops.kernel.sealed import CannotUnseal
from agentops.telemetry.logs import logger
from operations.moves import retried
from runs import budgets, conversations
from runs.models import AgentRun
from runs.services import wake

from . import children
from .control import AlreadyEnded, cancel_run

log = logger(__name__)

AT_ONCE = 16  # ends that one look tells


def due(after: UUID | None = None, limit: int = AT_ONCE) -> list[UUID]:
    """Runs whose end has not been told, the oldest first; with `after`, those that ended after that one."""
    ended = AgentRun.objects.filter(aftermath=True, finished_at__isnull=False)
    if after is not None:
        at = AgentRun.objects.values_list("finished_at", flat=True).get(pk=after)
        ended = ended.filter(finished_at__gte=at).exclude(finished_at=at, id__lte=after)
    return list(ended.order_by("finished_at", "id").values_list("id", flat=True)[:limit])


def look(after: UUID | None) -> UUID | None:
    """Tell some ends, those after `after`; returns the last of them where the next look goes on, None where it begins anew.

    One that cannot be told holds up no other: it is tried again when all the others have had their turn.
    """
    found = due(after, AT_ONCE)
    for run_id in found:
        try:
            tell(run_id)
        except Exception:
            log.exception("end_untold", run_id=show("run", run_id))
    return found[-1] if len(found) == AT_ONCE else None


def tell(run_id: UUID) -> None:
    """Tell the end of a run that has ended; once more does nothing."""
    run = AgentRun.objects.get(pk=run_id)
    if not run.aftermath or not run.is_terminal:
        return
    for child in children.family_of(run_id, at_work=True):  # its tool was abandoned while it waited for them
        with suppress(AlreadyEnded):
            cancel_run(
                run.tenant_id, child, actor=SYSTEM, reason=f"The run that started it, {run}, has ended."
            )
    if run.conversation_id is not None:
        _call_next(run.conversation_id, run)
    _settle(run)


@retried
def _call_next(conversation_id: UUID, ended: AgentRun) -> None:
    following = conversations.next_of(conversation_id)
    if following is not None:
        wake(following.id, "follow_up", {"after": ended.public_id}, dedupe_key="turn")


@retried
def _settle(ended: AgentRun) -> None:
    holders = budgets.lineage(ended)  # a child's parent is one of them
    *_, run = holders
    assert isinstance(run, AgentRun)
    if not run.aftermath:
        return
    budgets.give_back(holders)
    if run.parent_id is not None and not run.detached:
        with suppress(
            CannotUnseal
        ):  # the subject was erased: there is nothing to tell, and nobody to read it
            told = {"step": run.parent_step, "agent": run.agent, "outcome": children.ended(run)}
            wake(run.parent_id, "child", told, dedupe_key=run.public_id)
    AgentRun.objects.filter(pk=run.pk).update(aftermath=False)
