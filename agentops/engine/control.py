"""Ending runs from outside: cancel with a receipt of effects, fail with a reason."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q

from agentops.audit.entries import SYSTEM, Actor
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict
from approvals.services import withdraw
from operations.models import Interest, Operation
from operations.moves import lock_all, move, retried
from operations.states import FINAL, UNSENT, OperationStatus
from runs import services as runs
from runs.models import AgentRun
from runs.states import TERMINAL


@dataclass(frozen=True)
class Effect:
    """What became of one operation of a run that was ended."""

    operation_id: str
    action: str
    target: str
    outcome: str  # not_sent, settled, unknown, cannot_be_stopped
    provider_ref: str


@dataclass(frozen=True)
class CancelReceipt:
    """What a cancel did and did not undo; the same whenever it is asked for again."""

    run: AgentRun
    requested_by: str
    reason: str
    effects: list[Effect] = field(default_factory=list)

    @property
    def has_open_effects(self) -> bool:
        return not self.run.is_terminal


class AlreadyEnded(Conflict):
    """The run had ended, or was being ended, before; `receipt` tells how."""

    code, title = "already_ended", "The run has ended"

    def __init__(self, receipt: CancelReceipt) -> None:
        run = receipt.run
        words = f"{run} is {run.status}" if run.is_terminal else f"{run} is being ended"
        super().__init__(f"{words} already; nothing more was done.")
        self.receipt = receipt


def cancel_run(tenant_id: int, run_id: UUID, *, actor: Actor, reason: str) -> CancelReceipt:
    """End a run: nothing new begins, what was not sent never will be, what was sent is followed to its outcome.

    Raises NotFound, AlreadyEnded.
    """
    run, is_new = _end(tenant_id, run_id, "cancelled", "cancelled", actor, reason)
    receipt = receipt_of(run)
    if not is_new:
        raise AlreadyEnded(receipt)
    return receipt


def fail_run(
    tenant_id: int,
    run_id: UUID,
    *,
    code: str,
    detail: str,
    actor: Actor,
    owner: str | None = None,
    epoch: int | None = None,
) -> None:
    """End a run that cannot go on. With `owner` and `epoch` only while that lease is still held."""
    _end(tenant_id, run_id, "failed", code, actor, detail, owner=owner, epoch=epoch)


@retried
def _end(
    tenant_id: int,
    run_id: UUID,
    ending: str,
    code: str,
    actor: Actor,
    reason: str,
    owner: str | None = None,
    epoch: int | None = None,
) -> tuple[AgentRun, bool]:
    _lock_all_interested(run_id)
    run = runs.lock(tenant_id, run_id)
    if run.is_terminal or run.ending:
        return run, False
    if owner is not None and (run.lease_owner != owner or run.lease_epoch != epoch):
        return run, False
    run = runs.begin_ending(run, ending, code=code, actor=actor, reason=reason)
    unsent = Operation.objects.filter(run_id=run_id, status__in=UNSENT).values_list("id", flat=True)
    for locked in lock_all(unsent):
        if locked.operation.status not in UNSENT:
            continue
        withdraw(locked, actor)
        move(
            locked, OperationStatus.CANCELLED, reason=f"run_{ending}", actor=actor, error_code=f"run_{ending}"
        )
    return runs.finish_ending(runs.lock(tenant_id, run_id)), True


def _lock_all_interested(run_id: UUID) -> None:
    """Every run that one of this run's unsent operations may wake, locked by id before anything else is."""
    others = Interest.objects.filter(operation__run_id=run_id, operation__status__in=UNSENT).values("run_id")
    wanted = AgentRun.objects.filter(Q(pk__in=others) | Q(pk=run_id)).order_by("id")
    list(wanted.select_for_update(no_key=True).values_list("id", flat=True))


def receipt_of(run: AgentRun) -> CancelReceipt:
    """The receipt of an end, from the rows as they stand."""
    operations = Operation.objects.filter(run_id=run.id).order_by("created_at", "id")
    return CancelReceipt(
        run, run.ending_actor, run.ending_reason, [_effect(operation) for operation in operations]
    )


def _effect(operation: Operation) -> Effect:
    status = operation.status
    if status in (OperationStatus.UNKNOWN, OperationStatus.ESCALATED):
        outcome = "unknown"
    elif status == OperationStatus.EXECUTING:
        outcome = "cannot_be_stopped"
    elif status in FINAL and operation.attempts:
        outcome = "settled"
    else:
        outcome = "not_sent"
    return Effect(
        operation.public_id, operation.action, operation.target_text, outcome, operation.provider_ref
    )


def end_overdue(limit: int = 100) -> int:
    """Fail runs whose deadline has passed while nobody held them; returns how many."""
    overdue: Any = AgentRun.objects.filter(deadline_at__lte=Now(), ending="", lease_owner=None)
    ended = 0
    for tenant_id, run_id in list(
        overdue.exclude(status__in=TERMINAL).values_list("tenant_id", "id")[:limit]
    ):
        detail = "The run's time was up before it had an answer."
        _, is_new = _end(tenant_id, run_id, "failed", "deadline", SYSTEM, detail)
        ended += is_new
    return ended
