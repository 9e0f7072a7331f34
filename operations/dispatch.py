"""The only door out: claim, check again, commit an attempt, send exactly that, record what came back."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import elapsed, now
from agentops.kernel.problems import Invalid
from agentops.kernel.sealed import CannotUnseal, Place
from agentops.kernel.transitions import LostRace
from agentops.telemetry.logs import bound_contextvars, logger
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant
from runs.services import waits_for
from runs.states import BlockedOn

from .connectors.base import Action, Answer, Call, CheckFailed, Facts, PastSendBy, Request
from .connectors.registry import ACTIONS, CONNECTORS
from .evidence import SEND_WITHIN_SECONDS, Evidence, flight_seconds, key_is_spent, may_be_sent_again
from .findings import take
from .grades import declared
from .incidents import CREDENTIAL_CODES, open_incident
from .models import Attempt, Connection, Operation
from .moves import Locked, lock, move, retried
from .outcomes import escalate, look_again, next_generation
from .rewriting import Rewritten, rewritten
from .services import credential, digest_of, params
from .states import OperationStatus, Source, Verdict
from .targets import remember_facts

log = logger(__name__)

LEASE_MARGIN_SECONDS = 5.0
CHECK_AGAIN_SECONDS = 15.0
STORE_AGAIN_SECONDS = (0.05, 2.0)  # first and longest pause while an outcome cannot be stored


@dataclass(frozen=True)
class Standing:
    """Whether an operation may be sent now: `to` is None if it may, else where it goes instead, and why."""

    to: OperationStatus | None = None
    code: str = ""
    detail: str = ""
    then: Callable[[Locked], None] | None = None  # in the same transaction: close the old yes, ask anew
    moved: Sequence[dict[str, Any]] = ()  # what is otherwise than when it was allowed, and breaks nothing


type Withdraw = Callable[[Locked, Actor, str], None]
type Spend = Callable[[Operation, Sequence[dict[str, Any]]], bool]


class Recheck(Protocol):
    def __call__(self, operation: Operation, facts: Facts, anew: Rewritten | None = None) -> Standing: ...


@dataclass(frozen=True)
class Authority:
    """What the ledger needs from those who decide: a fresh look before the lock, and under it the mark of use.

    `spend` answers whether what was given is still alive; where it is not, nothing is sent. `withdraw` ends every open
    question about a locked operation that has been settled without an answer, and what allowed it unused, with a code.
    """

    recheck: Recheck
    spend: Spend
    withdraw: Withdraw


@dataclass(frozen=True)
class Departure:
    """An attempt that is committed and may now leave: the call, the pinned request, and until when."""

    operation_id: UUID
    attempt: int
    call: Call
    request: Request
    send_by: float  # on `elapsed`, this machine's own clock


def call_of(operation: Operation, *, asks: bool = True) -> Call:
    """The call of an operation, from its committed record alone; without the credential where nothing is asked over it."""
    return Call(
        operation_id=operation.public_id,
        tenant=operation.tenant.slug,
        actor=operation.actor,
        agent=operation.run.agent,
        action=operation.action,
        action_version=operation.action_version,
        target_type=operation.target_type,
        target=operation.target_name,
        params=params(operation),
        amount_minor=operation.amount_minor,
        currency=operation.currency,
        idempotency_key=operation.idempotency_key,
        generation=operation.generation,
        provider_ref=operation.provider_ref,
        base_url=operation.connection.base_url,
        credential=credential(operation.connection) if asks else "",
        timeout_seconds=settings.AGENTOPS_SEND_SECONDS,
        first_sent_at=_first_sent_at(operation),
        succeeded=operation.status == OperationStatus.SUCCEEDED,
    )


def loaded(operation_id: UUID) -> Operation:
    return Operation.objects.select_related("tenant", "run", "connection").get(pk=operation_id)


def _first_sent_at(operation: Operation) -> Any:
    if operation.attempts == 0:
        return None
    first = Attempt.objects.filter(operation_id=operation.id, generation=operation.generation).order_by(
        "number"
    )
    return first.values_list("started_at", flat=True).first()


def dispatch(operation_id: UUID, authority: Authority, *, worker: str) -> Operation:
    """Send an operation that is due, once: an approved one, or one whose lost answer may be asked for anew.

    Whatever else it is, it is returned as it stands.
    """
    operation = loaded(operation_id)
    with bound_contextvars(
        run_id=operation.run.public_id, operation_id=operation.public_id, tenant=operation.tenant.slug
    ):
        if operation.run.paused_at is not None:  # nothing of it leaves; what was sent before is looked up
            return operation
        if operation.status != OperationStatus.APPROVED and not may_be_sent_again(operation):
            return operation
        departure = depart(operation, authority, worker=worker)
        return loaded(operation_id) if departure is None else send(departure)


def depart(operation: Operation, authority: Authority, *, worker: str) -> Departure | None:
    """Look at everything again, then claim and commit an attempt; None where it must not or cannot be sent now."""
    connector, action = CONNECTORS.get(operation.connection.connector), ACTIONS.get(operation.action)
    if connector is None or action is None:
        return None  # a worker that has it sends it
    try:
        if operation.authorised_digest != digest_of(operation):
            raise CannotUnseal("The record is not the one that was allowed.")
        if not operation.connection.enabled:
            raise CheckFailed("connection_disabled", f"{operation.connection} is disabled.", retryable=True)
        if (withheld := _withheld(operation)) is not None:  # whatever the provider would say
            _claim(operation, authority, worker, withheld)
            return None
        if operation.status == OperationStatus.APPROVED and key_is_spent(operation, now()):
            operation = _under_a_living_key(operation)
        anew = _by_this_release(operation, action)
        call = call_of(anew.draft_of(operation) if anew else operation)
        facts = connector.check(call)
        if call.operation_id in facts.theirs:  # it is there already: send nothing, take it as evidence
            found = take(operation.id, Evidence(Source.LOOK_UP, connector.look_up(call)))
            waiting = Operation.objects.filter(pk=operation.id, status=OperationStatus.APPROVED)
            waiting.update(next_attempt_at=look_again(found))
            return None
        standing = authority.recheck(operation, facts, anew)
        return _claim(operation, authority, worker, standing, _Ready(facts, call, connector.build(call)))
    except CheckFailed as failed:
        _hold(operation.id, operation.version, failed)
    except CannotUnseal as error:
        _tampered(operation.id, operation.version, str(error))
    except LostRace:
        log.info("dispatch_lost_race")
    return None


def _by_this_release(operation: Operation, action: Action) -> Rewritten | None:
    """How it would read by another version of its action that is here; None where nothing changes, or it is on its way.

    Raises CheckFailed where it can no longer be done.
    """
    if action.version == operation.action_version or operation.attempts:
        return None
    try:
        return rewritten(operation, {})
    except Invalid as error:
        raise CheckFailed("action_changed", error.detail, retryable=False) from error


@retried
def _under_a_living_key(read: Operation) -> Operation:
    """Of which surely nothing was done: under the next key, for the present one may not catch what is sent now."""
    locked = lock(read.id)
    if locked.operation.version != read.version:
        raise LostRace(f"{read} moved meanwhile")
    if not locked.operation.in_doubt:
        next_generation(locked, "key_expired")
    return loaded(read.id)


@dataclass(frozen=True)
class _Ready:
    facts: Facts
    call: Call
    request: Request


def _withheld(operation: Operation) -> Standing | None:
    """Why nothing of this tenant or run is sent any more; None where nothing stands against it."""
    if operation.run.ending:
        return Standing(OperationStatus.CANCELLED, f"run_{operation.run.ending}")
    if operation.tenant.state != Tenant.State.ACTIVE:
        return Standing(OperationStatus.CANCELLED, "tenant_suspended")
    return None


@retried
def _claim(
    read: Operation, authority: Authority, worker: str, standing: Standing, ready: _Ready | None = None
) -> Departure | None:
    locked = lock(read.id)
    operation = locked.operation
    at = now()
    if operation.version != read.version:
        return None  # somebody was quicker: a cancel, a revoke, another worker
    if locked.run.paused_at is not None or not operation.connection.enabled:
        return None
    if any(moment and moment > at for moment in (operation.dispatch_after, operation.next_attempt_at)):
        return None
    if operation.status != OperationStatus.APPROVED and not may_be_sent_again(operation):
        return None  # evidence has come since: it is looked at first
    if operation.in_doubt and key_is_spent(operation, at):  # "send again" was safe when it was said
        detail = "The key that would have stopped a second effect is dead."
        standing = Standing(OperationStatus.FAILED, "absent_key_expired", detail)
    standing = _withheld(operation) or standing
    if standing.to is not None:
        _turn_back(locked, standing)
        if standing.code == "tenant_suspended":
            authority.withdraw(locked, SYSTEM, standing.code)
        return None
    if ready is None or not authority.spend(operation, standing.moved):
        return None
    remember_facts(operation.target, ready.facts)
    for run in locked.runs.values():
        waits_for(run, BlockedOn.CREDENTIAL, False)
    return commit_attempt(locked, ready.call, ready.request, worker)


def _turn_back(locked: Locked, standing: Standing) -> None:
    """It may not be sent (again). What may have happened already is a person's to find out, never called undone."""
    if locked.operation.in_doubt:
        escalate(locked, Answer(Verdict.ABSENT, code=standing.code, detail=standing.detail), standing.code)
        return
    assert standing.to is not None
    move(locked, standing.to, reason=standing.code, error_code=standing.code, error_detail=standing.detail)
    if standing.then is not None:
        standing.then(locked)


def commit_attempt(locked: Locked, call: Call, request: Request, worker: str) -> Departure:
    """Write the attempt of a locked operation that may be sent: from here on it may be on its way."""
    operation = locked.operation
    request = _pinned(operation) or request
    number = operation.attempts + 1
    leaves_by = elapsed() + SEND_WITHIN_SECONDS  # read first: it must never end after the `send_by` on record
    at = now()
    send_by = at + timedelta(seconds=SEND_WITHIN_SECONDS)
    quiet_at = at + timedelta(seconds=flight_seconds(operation))
    Attempt.objects.create(
        operation_id=operation.id,
        number=number,
        tenant_id=operation.tenant_id,
        generation=operation.generation,
        idempotency_key=operation.idempotency_key,
        request_digest=hashlib.sha256(request.body).hexdigest(),
        sealed_request=sealed.seal_json(
            vault.opened(operation.data_key_id),
            request_place(operation.id),
            {"method": request.method, "path": request.path, "body": request.body.decode("latin-1")},
        ),
        api_version=request.api_version,
        worker=worker,
        started_at=at,
        send_by=send_by,
        quiet_at=quiet_at,
    )
    lifetime = declared(operation.connection).key_lifetime_seconds
    expires = operation.key_expires_at or (at + timedelta(seconds=lifetime) if lifetime else None)
    lease_end = send_by + timedelta(seconds=settings.AGENTOPS_SEND_SECONDS + LEASE_MARGIN_SECONDS)
    move(
        locked,
        OperationStatus.EXECUTING,
        reason="retry" if number > 1 else "",
        told={"attempt": number, "generation": operation.generation},
        attempts=number,
        quiet_at=quiet_at,
        key_expires_at=expires,
        lease_owner=worker,
        lease_expires_at=lease_end,
        next_attempt_at=lease_end,
        dispatch_after=None,
    )
    return Departure(operation.id, number, call, request, leaves_by)


def request_place(operation_id: UUID) -> Place:
    return Place("operations_attempt", str(operation_id), "request")


def _pinned(operation: Operation) -> Request | None:
    """The bytes of this generation where it was sent before: it is sent again only as those."""
    first = (
        Attempt.objects.filter(operation_id=operation.id, generation=operation.generation)
        .order_by("number")
        .first()
    )
    if first is None:
        return None
    stored = vault.unseal(request_place(operation.id), first.sealed_request)
    body = stored["body"].encode("latin-1")
    if hashlib.sha256(body).hexdigest() != first.request_digest:
        raise CannotUnseal("The pinned request is not the one that was sent first.")
    return Request(stored["method"], stored["path"], body, first.api_version)


def send(departure: Departure) -> Operation:
    """Put a committed attempt on the wire and record what comes back, whoever holds which lease by then."""
    connector = CONNECTORS[ACTIONS[departure.call.action].connector]

    def before_first_byte() -> None:
        if elapsed() > departure.send_by:
            raise PastSendBy

    connection.close()  # nothing of the database is held while the provider thinks
    with bound_contextvars(operation_id=departure.call.operation_id):
        try:
            answer = connector.send(departure.call, departure.request, before_first_byte)
        except PastSendBy:
            answer = Answer(
                Verdict.NOT_SENT, code="past_send_by", detail="The attempt was too late to leave."
            )
        except Exception as error:  # a fault of the connector says nothing about the provider
            log.exception("connector_failed")
            answer = Answer(Verdict.UNKNOWN, code="connector_failed", detail=type(error).__name__)
        log.info("provider_answered", verdict=answer.verdict, code=answer.code, attempt=departure.attempt)
        return _stored(departure.operation_id, Evidence(Source.ANSWER, answer, attempt=departure.attempt))


def _stored(operation_id: UUID, evidence: Evidence) -> Operation:
    """An outcome in memory is on record before this thread does anything else, however long PostgreSQL is away."""
    pause, longest = STORE_AGAIN_SECONDS
    while True:
        try:
            return take(operation_id, evidence)
        except (OperationalError, InterfaceError, LostRace) as error:
            log.warning("outcome_not_stored_yet", error=type(error).__name__)
            connection.close()
            threading.Event().wait(pause)
            pause = min(pause * 2, longest)


def rehearse(connection: Connection, call: Call, request: Request) -> Answer:
    """What the contract test sends: no operation stands behind it, so it is refused anywhere but in test mode."""
    if connection.mode != "test" or not call.is_trial:
        raise ValueError(f"{connection} is live, or {call.operation_id} is no trial: nothing was sent")
    return CONNECTORS[connection.connector].send(call, request, lambda: None)


@retried
def _hold(operation_id: UUID, version: int, failed: CheckFailed) -> None:
    """What the operation rests on cannot be read now: nothing is sent; it stays as it is, or can no longer be done."""
    locked = lock(operation_id)
    operation = locked.operation
    if operation.version != version:
        return
    if not failed.retryable:
        _turn_back(locked, Standing(OperationStatus.FAILED, failed.code, failed.detail))
        return
    if failed.code in CREDENTIAL_CODES:
        open_incident(operation, failed.code)
        for run in locked.runs.values():
            waits_for(run, BlockedOn.CREDENTIAL, True)
    else:
        open_incident(operation, "provider_unreachable")
    again = now() + timedelta(seconds=CHECK_AGAIN_SECONDS)
    Operation.objects.filter(pk=operation.pk, version=version).update(next_attempt_at=again)


@retried
def _tampered(operation_id: UUID, version: int, detail: str) -> None:
    locked = lock(operation_id)
    operation = locked.operation
    if operation.version != version:
        return
    record(
        operation.tenant_id,
        "operation.tampered",
        "operation",
        operation.public_id,
        SYSTEM,
        detail={"detail": detail},
        security=True,
    )
    _turn_back(locked, Standing(OperationStatus.FAILED, "record_altered", detail))
