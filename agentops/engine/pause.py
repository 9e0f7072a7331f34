"""Pausing a run and letting it go on, each with a receipt of what is still under way or goes on now."""

from dataclasses import dataclass
from uuid import UUID

from agentops.audit.entries import Actor
from agentops.kernel.problems import Conflict
from operations.models import Operation
from operations.moves import retried
from operations.states import FINAL, OperationStatus
from runs import holds, services
from runs.models import AgentRun


@dataclass(frozen=True)
class PauseReceipt:
    """What a pause, or the end of one, finds: a step that still ends, effects that are held, effects that are followed."""

    run: AgentRun
    requested_by: str
    reason: str
    step_under_way: bool  # a worker holds the run; it ends its present step first
    held: list[str]  # operations that are allowed and not sent while it is paused
    followed: list[str]  # operations that were sent, whose outcome is found out all the same


@retried
def pause_run(tenant_id: int, run_id: UUID, *, actor: Actor, reason: str) -> PauseReceipt:
    """The present step ends; then nothing new begins, is proposed or is sent until somebody resumes the run.

    Raises NotFound, Conflict (ended, already_paused).
    """
    run = _living(tenant_id, run_id)
    if run.is_paused:
        raise Conflict(
            f"{run} was paused by {run.paused_by} already{f': {run.pause_reason}' if run.pause_reason else '.'}",
            code="already_paused",
        )
    return _receipt(holds.pause(run, actor, reason), actor, reason)


@retried
def resume_run(tenant_id: int, run_id: UUID, *, actor: Actor, reason: str) -> PauseReceipt:
    """The run goes on, with whatever has been answered meanwhile. Raises NotFound, Conflict (ended, not_paused)."""
    run = _living(tenant_id, run_id)
    if not run.is_paused:
        raise Conflict(f"{run} is not paused.", code="not_paused")
    return _receipt(holds.resume(run, actor, reason), actor, reason)


def _living(tenant_id: int, run_id: UUID) -> AgentRun:
    run = services.lock(tenant_id, run_id)
    if run.is_terminal or run.ending:
        raise Conflict(f"{run} is {run.status if run.is_terminal else 'being ended'} already.", code="ended")
    return run


def _receipt(run: AgentRun, actor: Actor, reason: str) -> PauseReceipt:
    open_ones = list(Operation.objects.filter(run_id=run.id).exclude(status__in=FINAL).order_by("id"))
    sent = [
        each for each in open_ones if each.status not in (OperationStatus.PENDING, OperationStatus.APPROVED)
    ]
    return PauseReceipt(
        run,
        actor.name,
        reason,
        step_under_way=run.lease_owner is not None,
        held=[each.public_id for each in open_ones if each.status == OperationStatus.APPROVED],
        followed=[each.public_id for each in sent],
    )
