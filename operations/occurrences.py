"""When the same intent may be carried out once more: what ended without effect, what was rejected, what a person reopens."""

from collections.abc import Callable
from uuid import UUID

from agentops.audit.entries import Actor, record
from agentops.kernel import redaction
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict, Invalid, NotYours
from agentops.tenancy.models import User
from runs.models import AgentRun, InboxMessage

from .models import Interest, Operation
from .moves import lock, retried
from .states import FINAL, OperationStatus

FOLLOW_UP = "follow_up"  # a later message of the customer, in a run's inbox
MAX_REASON_CHARS = 2_000

type AskAgain = Callable[[Operation], bool]  # whether people may be asked anew for what they rejected


def opens_next(run: AgentRun, found: Operation, may_ask_again: AskAgain) -> bool:
    """Whether `run`, proposing the intent of `found` at a new step, opens its next occurrence instead of joining it."""
    if found.status not in FINAL or (found.status == OperationStatus.SUCCEEDED and found.reopened_at is None):
        return False
    if _has_had_its_answer(run, found):
        return False
    return found.status != OperationStatus.REJECTED or found.reopened_at is not None or may_ask_again(found)


def adopted_after(operation: Operation) -> Operation | None:
    """The record of an effect that was found where `operation` says that there is none."""
    return Operation.objects.filter(previous=operation, authority_kind="adopted").order_by("id").first()


def occurrences_of(operation: Operation) -> list[Operation]:
    """Every occurrence of its intent, in the order in which a new proposal meets them."""
    found: Operation | None = operation
    while operation.previous is not None and operation.occurrence:
        found = operation = operation.previous
    line: list[Operation] = []
    while found is not None:
        adopted = adopted_after(found)
        line += [found] if adopted is None else [found, adopted]
        found = Operation.objects.filter(previous=found, occurrence=found.occurrence + 1).first()
    return line


def _has_had_its_answer(run: AgentRun, found: Operation) -> bool:
    """The run has asked for this already, and its customer has said nothing since: it only repeats itself."""
    if not Interest.objects.filter(run_id=run.id, operation_id=found.id).exists():
        return False
    later = InboxMessage.objects.filter(run_id=run.id, kind=FOLLOW_UP, at__gt=found.updated_at)
    return not later.exists()


@retried
def reopen(tenant_id: int, operation_id: UUID, *, person: User, reason: str, channel: str) -> Operation:
    """A person lets the same intent be proposed once more after it has ended, even after it succeeded; once.

    The proposal itself comes from a run, as every other one, and nobody who reopens an intent decides on it.
    Raises NotFound; NotYours (no_right); Invalid (reason_required); Conflict (not_ended, already_reopened).
    """
    reason = redaction.reason(reason, MAX_REASON_CHARS)
    operation = lock(operation_id, tenant_id=tenant_id).operation
    if not person.is_active or not person.has_perm("tenancy.settle_operations", operation.tenant):
        raise NotYours(f"You may not reopen operations of {operation.tenant}.", code="no_right")
    if not reason:
        raise Invalid(
            "To let this happen once more needs a reason; it is kept.",
            code="reason_required",
            errors=[{"pointer": "/reason", "detail": "Say why."}],
        )
    if operation.status not in FINAL:
        raise Conflict(f"{operation} has not ended; it is {operation.status}.", code="not_ended")
    if operation.reopened_at is not None:
        raise Conflict(f"{operation.reopened_by} has reopened {operation} already.", code="already_reopened")
    actor = Actor(f"user:{person.pk}", channel)
    Operation.objects.filter(pk=operation.pk).update(reopened_at=Now(), reopened_by=actor.name)
    record(
        tenant_id,
        "operation.reopened",
        "operation",
        operation.public_id,
        actor,
        detail={"reason": reason, "status": operation.status},
    )
    operation.refresh_from_db()
    return operation
