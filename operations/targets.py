"""What a target can still give: what the provider says of it, less what is promised or done."""

from uuid import UUID

from django.db.models import Q, QuerySet

from agentops.kernel.clock import now

from .connectors.base import Facts
from .models import Operation, Target
from .states import OperationStatus


def remember_facts(target: Target, facts: Facts) -> None:
    """Keep on the locked target what the provider says it can still give, taken out what we count ourselves.

    An effect under the name of an operation that has not happened, as far as we know, is counted as anybody's.
    """
    if facts.capacity_minor is None:
        return
    counted = {operation.public_id for operation in _counted(target)}
    foreign = sum(amount for owner, amount in facts.theirs.items() if owner not in counted)
    target.capacity_minor = facts.capacity_minor
    target.foreign_minor = foreign
    target.thing = facts.thing
    target.as_of = now()
    target.save(update_fields=["capacity_minor", "foreign_minor", "thing", "as_of"])


_PROMISED = (
    OperationStatus.APPROVED,
    OperationStatus.EXECUTING,
    OperationStatus.UNKNOWN,
    OperationStatus.ESCALATED,
)


def remaining_minor(target: Target, *, but: UUID) -> int | None:
    """What the locked target can still give: captured, less what is not ours, less all that is promised or done."""
    if target.capacity_minor is None:
        return None
    ours = sum(operation.amount_minor or 0 for operation in _counted(target).exclude(pk=but))
    return target.capacity_minor - target.foreign_minor - ours


def _counted(target: Target) -> QuerySet[Operation]:
    """Ours that hold or have taken money of the target: promised, on its way, in doubt, or done and not undone."""
    done = Q(status=OperationStatus.SUCCEEDED, reversed_at__isnull=True)
    return Operation.objects.filter(Q(status__in=_PROMISED) | done, target=target)
