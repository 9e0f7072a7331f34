"""How long a run waits for an outcome in doubt before it may say that it is unknown: its action's patience."""

from datetime import datetime
from uuid import UUID

from agentops.kernel.clock import now
from runs.services import wake

from .connectors.registry import ACTIONS
from .evidence import in_doubt_since
from .incidents import open_incident
from .models import Operation
from .moves import Locked, lock, retried
from .states import FINAL, OperationStatus


def of(operation: Operation) -> float | None:
    """In seconds; None where the runs of that action wait for ever."""
    action = ACTIONS.get(operation.action)
    return action.patience_seconds if action else None


def is_in_doubt(operation: Operation) -> bool:
    """Whether it may have happened and nothing tells: more than a request whose answer is just awaited."""
    return operation.status not in FINAL and (operation.in_doubt or operation.accepted_at is not None)


def left(operation: Operation) -> float | None:
    """Seconds until its patience ends, by the database's clock; None where it has none, or is not in doubt."""
    patience = of(operation)
    if patience is None or not is_in_doubt(operation):
        return None
    began: datetime = in_doubt_since(operation) or operation.created_at
    return patience - (now() - began).total_seconds()


def begin(locked: Locked) -> None:
    """The operation has come into doubt: its run looks again, so that it parks until the patience ends."""
    if of(locked.operation) is not None:
        told = {"operation_id": locked.operation.public_id, "status": locked.operation.status}
        wake(locked.operation.run_id, "operation", told)


@retried
def end(operation_id: UUID) -> Operation:
    """From here on a person is on it: an incident says so, unless the outcome was found meanwhile."""
    operation = lock(operation_id).operation
    if is_in_doubt(operation):
        open_incident(operation, "outcome_unknown", about=operation.public_id)
    return operation


def has_person(operation: Operation) -> bool:
    """Whether an incident about its outcome may be open, and stays so."""
    escalated = operation.status == OperationStatus.ESCALATED
    return escalated or (of(operation) is not None and is_in_doubt(operation))
