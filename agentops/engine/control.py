"""Ending runs from outside: cancel with a receipt of effects, fail with a reason."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from agentops.audit.entries import SYSTEM, Actor
from agentops.kernel.clock import Now, Once, now
from agentops.kernel.ids import show
from agentops.kernel.problems import Conflict
from agentops.telemetry.logs import logger
from approvals.services import withdraw
from operations.models import Interest, Operation
from operations.moves import lock_all, move, retried
from operations.states import FINAL, UNSENT, OperationStatus
from runs import services as runs
from runs.models import AgentRun
from runs.states import BLOCKED_FOR_PERSON
from runs.wakeups import ring_operations

from . import children

log = logger(__name__)

FAULT_SECONDS = 60.0  # until a run is tried again that could not be ended


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
    """What a cancel did and did not undo, in the run and all that ended with it; the same whenever it is asked for again."""

    run: AgentRun
    requested_by: str
    reason: str
    effects: list[Effect] = field(default_factory=list)

    @property
    def has_open_effects(self) -> bool:
        still_open = ("unknown", "cannot_be_stopped")
        return not self.run.is_terminal or any(effect.outcome in still_open for effect in self.effects)


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
    family = children.family_of(run_id, at_work=True)
    _lock_all_interested([run_id, *family])
    run = runs.lock(tenant_id, run_id)
    if run.is_terminal or run.ending:
        return run, False
    if owner is not None and (run.lease_owner != owner or run.lease_epoch != epoch):
        return run, False
    if ending == "cancelled" and BLOCKED_FOR_PERSON.intersection(run.blocked_on):
        code = run.error_code or code  # it ends for the reason for which it had stopped
    run = runs.begin_ending(run, ending, code=code, actor=actor, reason=reason)
    run, *_ = _finish_what_can([run, *children.end_children(run, family, actor)], actor)
    return run, True


def supersede(by: AgentRun, older: Collection[UUID], actor: Actor) -> list[CancelReceipt]:
    """Cancel those of `older` that have not ended yet, and all that ends with them, in the transaction that starts `by`."""
    families = {run_id: children.family_of(run_id, at_work=True) for run_id in sorted(older)}
    _lock_all_interested([*families, *chain.from_iterable(families.values())])
    ended, why = [], f"{by} was started under the same concurrency key, and the newest wins."
    for run_id, family in families.items():
        run = runs.lock(by.tenant_id, run_id)
        if run.is_terminal or run.ending:
            continue
        run = runs.begin_ending(run, "cancelled", code="superseded_by_newer", actor=actor, reason=why)
        ended += [run, *children.end_children(run, family, actor)]
    return [receipt_of(run) for run in _finish_what_can(ended, actor) if run.id in families]


def _finish_what_can(ended: Sequence[AgentRun], actor: Actor) -> list[AgentRun]:
    """What `ended`, all locked and ending, have not sent never will be; those without an open effect come to their end."""
    for locked in lock_all(_unsent([run.id for run in ended])):
        if locked.operation.status not in UNSENT:
            continue
        withdraw(locked, actor)
        why = f"run_{locked.run.ending}"
        if (
            locked.operation.in_doubt
        ):  # it was to be sent again: what an earlier try did must still be found out
            move(locked, OperationStatus.UNKNOWN, reason=why, actor=actor, next_attempt_at=now())
            ring_operations()
            continue
        move(locked, OperationStatus.CANCELLED, reason=why, actor=actor, error_code=why)
    return [runs.finish_ending(runs.lock(each.tenant_id, each.id)) for each in ended]


def _lock_all_interested(run_ids: Collection[UUID]) -> None:
    """These runs and every one that an unsent operation of theirs may wake, locked by id before anything else is."""
    interested = Interest.objects.filter(operation__in=_unsent(run_ids)).values_list("run_id", flat=True)
    wanted = AgentRun.objects.filter(pk__in={*run_ids, *interested}).order_by("id")
    list(wanted.select_for_update(no_key=True).values_list("id", flat=True))


def _unsent(run_ids: Collection[UUID]) -> list[UUID]:
    """The unsent operations of these runs. Sorted out here: a statement that names the status may read every open one."""
    rows = Operation.objects.filter(run__in=run_ids).values_list("id", "status")
    return [operation_id for operation_id, status in rows if status in UNSENT]


def receipt_of(run: AgentRun) -> CancelReceipt:
    """The receipt of an end, from the rows as they stand."""
    of = [run.id, *children.family_of(run.id)]
    operations = Operation.objects.filter(run__in=of).order_by("created_at", "id")
    return CancelReceipt(
        run, run.ending_actor, run.ending_reason, [_effect(operation) for operation in operations]
    )


def _effect(operation: Operation) -> Effect:
    status = operation.status
    if status == OperationStatus.EXECUTING:
        outcome = "cannot_be_stopped"
    elif status in (OperationStatus.UNKNOWN, OperationStatus.ESCALATED) or operation.in_doubt:
        outcome = "unknown"
    elif status in FINAL and operation.attempts:
        outcome = "settled"
    else:
        outcome = "not_sent"
    return Effect(
        operation.public_id, operation.action, operation.target_text, outcome, operation.provider_ref
    )


def end_overdue(limit: int = 100) -> int:
    """Fail runs whose deadline has passed while nobody held them; returns how many."""
    overdue: Any = AgentRun.objects.filter(
        deadline_at__lte=Once(), finished_at=None, ending="", lease_owner=None
    )
    ended = 0
    due = overdue.order_by("deadline_at").values_list("tenant_id", "id")
    for tenant_id, run_id in list(due[:limit]):
        detail = "The run's time was up before it had an answer."
        try:
            _, is_new = _end(tenant_id, run_id, "failed", "deadline", SYSTEM, detail)
        except Exception:  # one that cannot be ended now must not keep the others alive: it is put off
            log.exception("overdue_not_ended", run_id=show("run", run_id))
            again: Any = Now() + timedelta(seconds=FAULT_SECONDS)
            AgentRun.objects.filter(pk=run_id, ending="", finished_at=None).update(deadline_at=again)
            continue
        ended += is_new
    return ended
