"""Running a run again from the beginning: a new run with an empty journal, once a person has seen what that would meet."""

from dataclasses import dataclass
from uuid import UUID

from agentops.audit.entries import Actor
from agentops.kernel.problems import Conflict, NotFound
from agentops.kernel.sealed import CannotUnseal
from agentops.sdk import agents as known_agents
from approvals.policy import published
from operations.moves import retried
from runs import conversations, retries, services
from runs.models import AgentRun

from .outlook import Outlook, outlook


@dataclass(frozen=True)
class RerunReceipt:
    """The new run, and the list that was confirmed for it."""

    run: AgentRun
    outlook: Outlook
    requested_by: str
    reason: str


class Moved(Conflict):
    """Nothing was started: what the rerun would meet is not what was shown. `outlook` is the list as it is now."""

    code, title = "list_moved", "The list has moved"

    def __init__(self, now: Outlook) -> None:
        super().__init__(
            f"What a rerun of {now.source} would meet has changed since it was shown. Nothing was started; look again.",
            extra={"digest": now.digest},
        )
        self.outlook = now


def rerun(
    tenant_id: int, run_id: UUID, *, digest: str, actor: Actor, reason: str, text: str | None = None
) -> RerunReceipt:
    """Take up the request of an ended run from the beginning, under the newest release, after `digest` of `outlook` was seen.

    With `text` it is a fork: it asks that instead. No completed turn is read back and nothing is inherited; effects are not
    made twice, since each proposal meets the operation that its intent has already. Raises NotFound, AgentPaused, Moved,
    Conflict (not_ended, no_agent, erased, dedupe_key_taken).
    """
    found = AgentRun.objects.filter(tenant_id=tenant_id, pk=run_id).first()
    if found is None:
        raise NotFound("There is no such run.")
    if not found.is_terminal:
        raise Conflict(f"{found} has not ended; wait for its end, or cancel it.", code="not_ended")
    seen = outlook(found)
    new = _begin(seen, actor, reason, text) if seen.digest == digest else None
    if new is None:
        raise Moved(outlook(found))
    return RerunReceipt(new, seen, actor.name, reason)


@retried
def _begin(seen: Outlook, actor: Actor, reason: str, text: str | None) -> AgentRun | None:
    """The new run; None, and nothing is started, where the list has moved since it was read."""
    conversations.locked_of(seen.source.id)
    run = services.lock(seen.source.tenant_id, seen.source.id)
    agent = known_agents.agent(run.agent)
    if agent is None:
        raise Conflict(f"The present release has no agent {run.agent}; bring it back first.", code="no_agent")
    if seen.has_moved():
        return None
    rules = published(run.tenant_id, agent)
    try:
        return retries.start_anew(run, agent, rules, actor=actor, reason=reason, text=text)
    except CannotUnseal:
        raise Conflict(f"What {run} was asked has been erased.", code="erased") from None
