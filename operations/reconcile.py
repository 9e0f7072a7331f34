"""Find out what became of operations whose answer was lost. Takes no input but the rows: what is due is due."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from django.db.models import Q, QuerySet

from agentops.kernel.clock import Now, Once, now
from agentops.kernel.transitions import LostRace, swap
from agentops.telemetry.logs import bound_contextvars, logger

from .connectors.base import Answer, CheckFailed
from .connectors.registry import ACTIONS, CONNECTORS
from .dispatch import Authority, call_of, dispatch, loaded
from .evidence import Evidence, may_be_sent_again
from .findings import take
from .grades import declared
from .models import Operation
from .states import OperationStatus, Source, Verdict

log = logger(__name__)

LOOK_UP_LEASE_SECONDS = 30
FAULT_SECONDS = 60.0  # until an operation is tried again that could not be carried on
OTHER_RELEASE_SECONDS = 10.0  # for a worker of the operation's release to have taken it


def due(limit: int = 32) -> list[UUID]:
    """Operations that a machine should look at now: to be sent, to be looked up, or left by a dead worker."""
    held = Q(status=OperationStatus.APPROVED, run__paused_at__isnull=False)  # until the run is resumed
    rows = _due().filter(_of_this_release()).exclude(held).order_by("next_attempt_at")
    return list(rows.values_list("id", flat=True)[:limit])


def waiting_for_another_release(limit: int = 32) -> list[UUID]:
    """Runs that wait, as if for a provider, for an operation that no worker has touched: it is of a version that is not here."""
    late = _due(OTHER_RELEASE_SECONDS).exclude(_of_this_release())
    sleeps = Q(run__ready_at=None) | Q(run__ready_at__gt=Now())
    asleep = late.filter(sleeps, run__needs=[], run__lease_owner=None, run__ending="")
    return list(asleep.order_by("run_id").values_list("run_id", flat=True).distinct()[:limit])


def _due(seconds: float = 0.0) -> QuerySet[Operation]:
    alive = [OperationStatus.APPROVED, OperationStatus.EXECUTING, OperationStatus.UNKNOWN]
    return Operation.objects.filter(
        status__in=alive, next_attempt_at__lte=Once() - timedelta(seconds=seconds)
    )


def _of_this_release() -> Q:
    """Only a worker that has an operation's version of its action knows what to send, and how to read what comes back."""
    versions = (Q(action=action.name, action_version=action.version) for action in ACTIONS.values())
    return Q(*versions, _connector=Q.OR)


def carry_on(operation_id: UUID, authority: Authority, *, worker: str) -> Operation:
    """What a machine does with a due operation, whether or not any worker of its run lives.

    One with which it cannot be done (a fault of ours) is put off for a while: the first in the list must not be for ever
    the same ones.
    """
    try:
        operation = reconcile(operation_id)
        return dispatch(operation.id, authority, worker=worker)
    except Exception:
        again = now() + timedelta(seconds=FAULT_SECONDS)
        Operation.objects.filter(pk=operation_id, next_attempt_at__lte=Now()).update(next_attempt_at=again)
        raise


def reconcile(operation_id: UUID) -> Operation:
    """One look at an operation in doubt: a dead worker's attempt becomes unknown; then the provider is asked."""
    operation = loaded(operation_id)
    with bound_contextvars(
        run_id=operation.run.public_id, operation_id=operation.public_id, tenant=operation.tenant.slug
    ):
        if operation.status == OperationStatus.EXECUTING and operation.accepted_at is None:
            if operation.lease_expires_at and operation.lease_expires_at > now():
                return operation
            lost = Answer(Verdict.UNKNOWN, code="worker_lost", detail="The sender ended without an answer.")
            operation = take(operation_id, Evidence(Source.SWEEP, lost))
        if operation.status not in (OperationStatus.EXECUTING, OperationStatus.UNKNOWN):
            return operation
        if not declared(operation.connection).can_look_up and may_be_sent_again(operation):
            return operation
        return look_up(operation_id)


def look_up(operation_id: UUID) -> Operation:
    """Ask the provider and merge what it says. Read-only at the provider, safe at any time, by anyone."""
    operation = loaded(operation_id)
    try:  # two workers may ask at once, but one is enough
        swap(operation, operation.status, next_attempt_at=now() + timedelta(seconds=LOOK_UP_LEASE_SECONDS))
    except LostRace:
        return operation
    answer = ask(operation)
    log.info("looked_up", verdict=answer.verdict, code=answer.code)
    return take(operation_id, Evidence(Source.LOOK_UP, answer))


def ask(operation: Operation, reference: str = "") -> Answer:
    """What the provider shows of an operation now, under that reference where one is given. Never raises."""
    if not declared(operation.connection).can_look_up:
        return Answer(Verdict.UNKNOWN, code="cannot_be_looked_up")
    try:
        call = call_of(operation)
        call = replace(call, provider_ref=reference or call.provider_ref)
        return CONNECTORS[operation.connection.connector].look_up(call)
    except CheckFailed as failed:  # nothing can be asked without a credential: an outage, that somebody mends
        return Answer(Verdict.BLOCKED, code=failed.code, detail=failed.detail)
    except Exception as error:  # a fault of the connector proves nothing
        log.exception("look_up_failed")
        return Answer(Verdict.UNKNOWN, code="look_up_failed", detail=type(error).__name__)
