"""Newest wins: a start that ends the earlier runs under its concurrency key."""

from dataclasses import dataclass, field

from agentops.kernel.problems import Invalid
from agentops.sdk.agents import Agent
from agentops.tenancy.principals import Principal
from operations.moves import retried
from runs.models import AgentRun, Slot
from runs.services import Start, actor_of, make_slot, start_run

from .control import CancelReceipt, supersede


@dataclass(frozen=True)
class Newest:
    """The run that won; what became of each run that it replaced. Where it is not new, nothing was replaced."""

    run: AgentRun
    is_new: bool
    replaced: list[CancelReceipt] = field(default_factory=list)


@retried
def start_newest(
    principal: Principal, agent: Agent, start: Start, *, trace_id: str, policies: str = ""
) -> Newest:
    """`start_run`, and in the same transaction the cancel of every unfinished run of the tenant under the same key.

    What a replaced run has sent is followed to its outcome, and its row ends then; the new one does not wait for that.
    Of two starts at the same moment the later one finds the earlier one's run. Raises AgentPaused, Invalid (no_concurrency_key).
    """
    if not start.concurrency_key:
        raise Invalid(
            "Only a start that names its concurrency key replaces others.", code="no_concurrency_key"
        )
    # The slot, first of all locks: who starts under the key meanwhile waits here, and then sees what was started.
    make_slot(principal.tenant)
    list(Slot.objects.select_for_update(no_key=True).filter(tenant=principal.tenant))
    run, is_new = start_run(principal, agent, start, trace_id=trace_id, policies=policies)
    if not is_new:
        return Newest(run, False)
    # A child ends with its parent or stands for itself: its key is its agent's, and no starter's.
    under_key = AgentRun.objects.filter(
        tenant=principal.tenant,
        concurrency_key=start.concurrency_key,
        finished_at=None,
        ending="",
        parent=None,
    )
    older = under_key.exclude(pk=run.pk).values_list("pk", flat=True)
    return Newest(run, True, supersede(run, list(older), actor_of(principal)))
