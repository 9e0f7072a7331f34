"""The ends of a question that nobody answered: its time is over, or its run ends; and the closing of every one."""

from uuid import UUID

from django.db.models import Q

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel.clock import Now, Once, now
from agentops.kernel.ids import show
from agentops.kernel.transitions import swap
from agentops.telemetry.logs import logger
from operations.moves import Locked, lock, move, retried
from operations.states import OperationStatus
from runs.events import Event, append
from runs.services import approvals_left
from runs.wakeups import approvals_changed

from .models import Approval
from .states import ApprovalStatus

log = logger(__name__)

_S = ApprovalStatus


def close(locked: Locked, approval: Approval, to: ApprovalStatus, actor: Actor, *, reason: str = "") -> None:
    """Close an open approval and tell the runs that wait for it."""
    finish(locked, approval, to, actor, reason=reason)
    for run_id, run in locked.runs.items():
        if run.is_terminal:
            continue
        still_open = Approval.objects.filter(
            operation__interests__run_id=run_id, status=_S.REQUESTED
        ).exists()
        locked.runs[run_id] = approvals_left(run, still_open)


def finish(locked: Locked, approval: Approval, to: ApprovalStatus, actor: Actor, *, reason: str = "") -> None:
    """The same where the operation is asked about anew in this transaction: its runs wait on. `reason` is a code."""
    swap(approval, to, closed_at=Now(), closed_by=actor.name, closed_reason=reason[:60])
    told = {
        "approval_id": approval.public_id,
        "operation_id": locked.operation.public_id,
        "status": approval.status,
        "by": actor.name,
    }
    for run in locked.runs.values():
        if not run.is_terminal:
            append(run, Event("approval.decided", told))
    approvals_changed(approval.tenant_id)


def expire_due(limit: int = 100) -> int:
    """Close what nobody decided in time, by the database's clock, and what evidence has settled meanwhile; how many."""
    asked = Approval.objects.filter(status=_S.REQUESTED)
    overdue = asked.filter(Q(expires_at__lte=Once()) | ~Q(operation__status=OperationStatus.PENDING))
    expired = 0
    for approval_id, operation_id in list(
        overdue.order_by("expires_at").values_list("id", "operation_id")[:limit]
    ):
        try:
            expired += expire(approval_id, operation_id)
        except Exception as error:  # whatever is wrong with one, the others end in time
            log.exception("not_expired", approval=show("apr", approval_id), error=type(error).__name__)
    return expired


@retried
def expire(approval_id: UUID, operation_id: UUID) -> int:
    """Close one question if its time is over, and say whether it was: whoever notices it does, worker or not."""
    locked = lock(operation_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=approval_id)
    if approval.status != _S.REQUESTED:
        return 0
    if locked.operation.status != OperationStatus.PENDING:  # a late answer came: there is nothing left to ask
        close(locked, approval, _S.WITHDRAWN, SYSTEM, reason="settled")
        record(approval.tenant_id, "approval.withdrawn", "approval", approval.public_id, SYSTEM)
        return 1
    if approval.expires_at is None or approval.expires_at > now():
        return 0
    close(locked, approval, _S.EXPIRED, SYSTEM)
    record(approval.tenant_id, "approval.expired", "approval", approval.public_id, SYSTEM)
    move(locked, OperationStatus.EXPIRED, reason="expired", error_code="expired")
    return 1


def withdraw(locked: Locked, actor: Actor, code: str = "") -> None:
    """Nobody asks about this locked operation any more: its run ends, or it has happened without an answer."""
    for approval in Approval.objects.select_for_update(no_key=True).filter(
        operation=locked.operation, status=_S.REQUESTED
    ):
        why = code or (f"run_{locked.run.ending}" if locked.run.ending else "settled")
        close(locked, approval, _S.WITHDRAWN, actor, reason=why)
        record(approval.tenant_id, "approval.withdrawn", "approval", approval.public_id, actor)
