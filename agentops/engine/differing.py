"""A step that asks for something else than what stands there and was never sent: the old is given up, the new is asked about."""

from agentops.audit.entries import SYSTEM
from agentops.sdk.errors import JournalMismatch
from approvals.models import Approval
from approvals.services import AUTHORITY
from operations.models import Interest, Operation
from operations.moves import lock, move, retried
from operations.states import UNSENT, OperationStatus

from .live import LeaseLost, LiveRun

MAX_TIMES = 2  # at one step: a tool that asks for something else each time has a fault of its own
CODE = "proposal_differs"


@retried
def give_up(live: LiveRun, operation: Operation, step: str) -> Approval | None:
    """Cancel the run's own unsent operation at `step` and free the step; the last question about it, where there was one.

    What was sent, what another run proposed, and what a rule allowed alone stays as it is. Raises JournalMismatch, LeaseLost.
    """
    locked = lock(operation.id)
    operation, run = locked.operation, locked.runs.get(live.id)
    if run is None or run.lease_owner != live.owner or run.lease_epoch != live.epoch or run.ending:
        raise LeaseLost(live.public_id)
    asked = Approval.objects.filter(operation=operation).order_by("-id").first()
    before = Interest.objects.filter(run_id=run.id, step__startswith=f"{step}/{CODE}-").count()
    is_own = operation.run_id == run.id and operation.status in UNSENT and not operation.attempts
    if asked is None or not is_own or before >= MAX_TIMES:
        raise JournalMismatch(
            f"Step {step} recorded {operation.action} on {operation.target_text} with other parameters."
        )
    AUTHORITY.withdraw(locked, SYSTEM, CODE)
    move(locked, OperationStatus.CANCELLED, reason=CODE, error_code=CODE)
    Interest.objects.filter(run_id=run.id, step=step).delete()
    Interest.objects.create(
        run_id=run.id,
        step=f"{step}/{CODE}-{before + 1}",
        tenant_id=run.tenant_id,
        operation_id=operation.id,
    )
    return asked
