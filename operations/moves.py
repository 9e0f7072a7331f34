"""The one function that moves an operation: compare-and-swap, event, audit entry, and what the run must know of it."""

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any
from uuid import UUID

from django.db import OperationalError, transaction
from django.db.models import F, Model, QuerySet

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel.clock import Now
from agentops.kernel.problems import NotFound
from agentops.kernel.redaction import mask_text
from agentops.kernel.transitions import LostRace, swap
from runs.events import Event, append
from runs.models import AgentRun
from runs.services import finish_ending, requesters_of, wake

from .models import Interest, Operation, Settlement, Target
from .states import FINAL, OperationStatus

# The event of a move is named for where it leads, except these two.
_EVENT = {OperationStatus.PENDING: "proposed", OperationStatus.EXECUTING: "dispatched"}


class Locked:
    """An operation with every run that waits for it, locked in the one order: runs by id, target, operation."""

    def __init__(self, operation: Operation, runs: dict[UUID, AgentRun]) -> None:
        self.operation = operation
        self.runs = runs
        self.undoes: Locked | None = None  # what this one undoes, with its runs

    @property
    def run(self) -> AgentRun:
        return self.runs[self.operation.run_id]

    @property
    def askers(self) -> set[str]:
        """Everybody who asks for it: the chain of each run that came to it."""
        return _chains(self.runs.values())


def askers_of(operation: Operation) -> set[str]:
    """The same for an operation that is not locked."""
    runs = {operation.run_id, *_interested([operation.id])[operation.id]}
    return _chains(AgentRun.objects.filter(pk__in=runs))


def _chains(runs: Iterable[AgentRun]) -> set[str]:
    return {name for run in runs for name in requesters_of(run)}


def lock(operation_id: UUID, *, tenant_id: int | None = None) -> Locked:
    """Lock an operation (of that tenant) for a move. Raises NotFound; LostRace where a run joined meanwhile (begin again)."""
    found = lock_all([operation_id])
    if not found or tenant_id not in (None, found[0].operation.tenant_id):
        raise NotFound("There is no such operation.")
    return found[0]


def lock_all(operation_ids: Collection[UUID]) -> list[Locked]:
    """The same for several at once, in the order of their ids; each lock is taken in the one order of all of them."""
    undone = dict(
        Operation.objects.filter(pk__in=operation_ids, reverses__isnull=False).values_list(
            "id", "reverses_id"
        )
    )
    every = {*operation_ids, *undone.values()}
    found = Operation.objects.filter(pk__in=every).values_list("run_id", "target_id")
    owners, targets = {run_id for run_id, _ in found}, {target_id for _, target_id in found}
    wanted = owners.union(*_interested(every).values())
    runs = {run.id: run for run in _locked(AgentRun, wanted)}
    _locked(Target, targets)
    operations = _locked(Operation, every)
    interested = _interested(every)
    if not set().union(*interested.values()) <= set(runs):
        raise LostRace("another run joined an operation meanwhile")
    locked = {
        each.id: Locked(
            each, {run_id: runs[run_id] for run_id in sorted(interested[each.id] | {each.run_id})}
        )
        for each in operations
    }
    for operation_id, undone_id in undone.items():
        locked[operation_id].undoes = locked[undone_id]
    return [each for operation_id, each in locked.items() if operation_id in operation_ids]


def _locked[Row: Model](model: type[Row], ids: Collection[UUID]) -> list[Row]:
    rows: QuerySet[Row] = model._default_manager.select_for_update(no_key=True).filter(pk__in=ids)
    return list(rows.order_by("pk"))


def _interested(operation_ids: Collection[UUID]) -> dict[UUID, set[UUID]]:
    """The runs that wait for each of these operations."""
    found: dict[UUID, set[UUID]] = {operation_id: set() for operation_id in operation_ids}
    rows = Interest.objects.filter(operation_id__in=operation_ids).values_list("operation_id", "run_id")
    for operation_id, run_id in rows:
        found[operation_id].add(run_id)
    return found


def move(
    locked: Locked,
    to: OperationStatus,
    *,
    reason: str = "",
    actor: Actor = SYSTEM,
    told: dict[str, Any] | None = None,
    **changes: Any,
) -> Operation:
    """Move a locked operation, tell its runs, and let an ending run end if this was its last open effect.

    `reason` is a code. `told` goes into the event beside the operation's id, action, target and former status.
    """
    operation = locked.operation
    before = operation.status
    if to in FINAL:
        changes |= {"lease_owner": None, "lease_expires_at": None, "next_attempt_at": None}
    if "error_detail" in changes:
        changes["error_detail"] = mask_text(changes["error_detail"])[:500]
    swap(operation, to, **changes)
    said = {**facts_of(operation), "from": before, "reason": reason, **(told or {})}
    event = Event(f"operation.{_EVENT.get(to, to.value)}", said)
    if operation.provider_ref:
        event.data["provider_ref"] = operation.provider_ref
    for run in locked.runs.values():
        if not run.is_terminal:
            append(run, event)
    record(
        operation.tenant_id,
        f"operation.{to.value}",
        "operation",
        operation.public_id,
        actor,
        before={"status": before},
        after={"status": to.value, "params": operation.params_digest},
        detail={"reason": reason, "from": before},
    )
    if to in FINAL and before not in FINAL:
        Settlement.objects.filter(tenant_id=operation.tenant_id, operation=operation, closed_at=None).update(
            closed_at=Now(), closed_as="quicker"
        )
        _closed(locked, reason)
    return operation


def facts_of(operation: Operation) -> dict[str, Any]:
    """What every event of an operation says about it."""
    return {
        "operation_id": operation.public_id,
        "action": operation.action,
        "target": operation.target_text,
        "amount_minor": operation.amount_minor,
        "currency": operation.currency or None,
    }


def _closed(locked: Locked, reason: str) -> None:
    operation = locked.operation
    AgentRun.objects.filter(pk=operation.run_id).update(open_effects=F("open_effects") - 1)
    locked.run.open_effects -= 1
    finish_ending(locked.run)
    for run_id in locked.runs:
        wake(
            run_id,
            "operation",
            {"operation_id": operation.public_id, "status": operation.status, "reason": reason},
        )


_TRIES = 5


def retried[**P, R](work: Callable[P, R]) -> Callable[P, R]:
    """`work` as one transaction, begun again where a run joined meanwhile, a row moved, or a deadlock broke it."""

    @wraps(work)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        for last in (*(False,) * (_TRIES - 1), True):
            try:
                with transaction.atomic():
                    return work(*args, **kwargs)
            except (LostRace, OperationalError):
                if last:
                    raise
        raise AssertionError("unreachable")

    return again
