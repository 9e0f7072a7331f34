"""Holding back: a run that a person has paused begins nothing, an agent that a person has paused starts no new run."""

from django.db import IntegrityError, transaction

from agentops.audit.entries import Actor, record
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict
from agentops.kernel.redaction import mask_text
from agentops.kernel.transitions import swap
from agentops.tenancy.models import Tenant

from . import wakeups
from .events import Event, append
from .models import AgentPause, AgentRun


def pause(run: AgentRun, actor: Actor, reason: str) -> AgentRun:
    """The locked, living `run` begins nothing new; whoever holds it ends its present step and hands it back."""
    said = mask_text(reason)[:500]
    run = swap(run, run.status, paused_at=Now(), paused_by=actor.name, pause_reason=said)
    append(run, Event("run.paused", {"why": "person", "actor": actor.name, "reason": said}))
    record(run.tenant_id, "run.paused", "run", run.public_id, actor, detail={"reason": reason})
    wakeups.control_changed()
    return run


def resume(run: AgentRun, actor: Actor, reason: str) -> AgentRun:
    """The locked, paused `run` goes on, with whatever has been answered meanwhile."""
    # One that has not begun and is not due waits for its turn in its conversation.
    due = run.ready_at if run.started_at is None else Now()
    run = swap(run, run.status, paused_at=None, paused_by="", pause_reason="", ready_at=due)
    append(
        run, Event("run.resumed", {"why": "pause", "actor": actor.name, "reason": mask_text(reason)[:500]})
    )
    record(run.tenant_id, "run.resumed", "run", run.public_id, actor, detail={"reason": reason})
    wakeups.ring(run.pool)
    wakeups.ring_operations()  # what was allowed meanwhile
    return run


def unpark(run: AgentRun, actor: Actor, reason: str) -> AgentRun:
    """The locked `run`, parked for a person, is looked at again by any worker."""
    run = swap(run, run.status, needs=[], ready_at=Now())
    append(
        run, Event("run.resumed", {"why": "retry", "actor": actor.name, "reason": mask_text(reason)[:500]})
    )
    record(run.tenant_id, "run.retried", "run", run.public_id, actor, detail={"reason": reason})
    wakeups.ring(run.pool)
    return run


class AgentPaused(Conflict):
    """Nothing was started: a person has paused the agent for this tenant."""

    code, title = "agent_paused", "The agent is paused"

    def __init__(self, pause: AgentPause) -> None:
        at = f"{pause.paused_at:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(
            f"{pause.agent} was paused at {at}{f': {pause.reason}' if pause.reason else '.'} Nothing was started;"
            " repeat the request once it is resumed. Its present runs go on.",
            extra={"paused_at": pause.paused_at.isoformat()},
        )


def require_agent(tenant_id: int, agent: str) -> None:
    """Raises AgentPaused where `agent` may start no run of that tenant."""
    found = AgentPause.objects.filter(tenant_id=tenant_id, agent=agent).first()
    if found is not None:
        raise AgentPaused(found)


@transaction.atomic
def pause_agent(tenant: Tenant, agent: str, *, actor: Actor, reason: str) -> AgentPause:
    """No new run of `agent` in that tenant; its present runs go on. Raises Conflict (already_paused)."""
    said = mask_text(reason)[:500]
    try:
        with transaction.atomic():
            made = AgentPause.objects.create(tenant=tenant, agent=agent, paused_by=actor.name, reason=said)
    except IntegrityError:
        raise Conflict(f"{agent} is paused already in {tenant}.", code="already_paused") from None
    made.refresh_from_db()
    record(tenant.id, "agent.paused", "agent", agent, actor, detail={"reason": reason})
    return made


@transaction.atomic
def resume_agent(tenant: Tenant, agent: str, *, actor: Actor, reason: str) -> None:
    """`agent` may start runs again. Raises Conflict (not_paused)."""
    deleted, _ = AgentPause.objects.filter(tenant=tenant, agent=agent).delete()
    if not deleted:
        raise Conflict(f"{agent} is not paused in {tenant}.", code="not_paused")
    record(tenant.id, "agent.resumed", "agent", agent, actor, detail={"reason": reason})
