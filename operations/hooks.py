"""What providers tell us by themselves: a signed message is stored, then taken as evidence, once."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from uuid import UUID

from django.db import OperationalError, transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now, now
from agentops.kernel.ids import parse, uuid7
from agentops.kernel.problems import BadRequest, NotFound, Unauthorized
from agentops.kernel.sealed import CannotUnseal, Place
from agentops.kernel.transitions import LostRace
from agentops.telemetry.logs import bound_contextvars, logger
from agentops.tenancy import rates, vault

from . import unmatched
from .connectors.base import Answer, Message, NotSigned, Told
from .connectors.registry import CONNECTORS
from .dispatch import call_of, loaded
from .evidence import Evidence
from .findings import merge
from .incidents import open_at
from .models import Connection, Hook, Operation
from .moves import lock, retried
from .states import Source, Verdict

log = logger(__name__)

TOLERANCE_SECONDS = 300  # between a message's signature and its arrival: later it may be a replay
REFUSALS_A_MINUTE = 20  # security events for one connection
TRIAL = "trial_"  # how the contract test names itself at a provider; no operation stands behind it
LEFT_SECONDS = 5  # a message that is stored and not taken for so long was left by whoever stored it


def secret_place(connection_id: UUID) -> Place:
    return Place("operations_connection", str(connection_id), "hook_secret")


def body_place(hook_id: UUID) -> Place:
    return Place("operations_hook", str(hook_id), "body")


def receive(connection_id: UUID, headers: Mapping[str, str], body: bytes) -> Hook:
    """Store a provider's message and take it as evidence. One that is here already changes nothing.

    It counts as received once it is stored: what cannot be taken now is taken later. Raises NotFound, Unauthorized
    (not_signed), BadRequest (stale_signature).
    """
    found = Connection.objects.select_related("tenant").filter(
        pk=connection_id, sealed_hook_secret__isnull=False
    )
    connection = found.first()
    if connection is None or connection.connector not in CONNECTORS:
        raise NotFound("There is no such connection, or its provider sends no messages.")
    with bound_contextvars(tenant=connection.tenant.slug):
        message = _read(connection, headers, body)
        hook, is_new = _store(connection, message, body)
        log.info("hook_received", type=message.type, event_id=message.event_id, is_new=is_new)
        if hook.taken_at is None:
            try:
                _take(connection, hook, message.told)
            except Exception as error:  # it is stored: whoever works next takes it, or puts it aside
                log.warning("hook_left_for_later", error=type(error).__name__)
    return hook


def _read(connection: Connection, headers: Mapping[str, str], body: bytes) -> Message:
    assert connection.sealed_hook_secret is not None
    secret = vault.unseal(secret_place(connection.id), connection.sealed_hook_secret)["secret"]
    try:
        message = CONNECTORS[connection.connector].read_hook(headers, body, secret)
    except NotSigned as error:
        _refused(connection, "not_signed")
        raise Unauthorized(
            f"{error} Sign it with the secret that this connection has.",
            code="not_signed",
            headers={"WWW-Authenticate": 'Signature realm="hooks"'},
        ) from None
    if abs(now() - message.signed_at) > timedelta(seconds=TOLERANCE_SECONDS):
        _refused(connection, "stale_signature")
        raise BadRequest(
            f"The signature is more than {TOLERANCE_SECONDS} s away from our clock. Sign each delivery anew.",
            code="stale_signature",
        )
    return message


def _refused(connection: Connection, code: str) -> None:
    log.warning("hook_refused", connection=connection.public_id, code=code)
    if not rates.is_within(f"hook_refused:{connection.id}", REFUSALS_A_MINUTE):
        return  # anybody can send garbage; our record is not theirs to fill
    with transaction.atomic():
        record(
            connection.tenant_id,
            "hook.refused",
            "connection",
            connection.public_id,
            Actor("unknown", "webhook"),
            detail={"code": code},
            security=True,
        )


def _store(connection: Connection, message: Message, body: bytes) -> tuple[Hook, bool]:
    hook_id = uuid7()
    return Hook.objects.get_or_create(
        tenant_id=connection.tenant_id,
        connection=connection,
        event_id=message.event_id,
        defaults={
            "id": hook_id,
            "type": message.type,
            "told_at": message.told_at,
            "sealed_body": sealed.seal_json(
                vault.for_tenant(connection.tenant_id),
                body_place(hook_id),
                asdict(message.told) if message.told else None,
            ),
        },
    )


def take_left(limit: int = 32) -> int:
    """Take messages that are stored and that nobody has taken: their receiver died, or met a lock. Returns how many.

    One that cannot be taken at all is put aside as `unreadable`, under an incident: it must not hold up the others, nor whatever else is due.
    """
    left = Hook.objects.filter(
        taken_at__isnull=True, received_at__lte=now() - timedelta(seconds=LEFT_SECONDS)
    )
    taken = 0
    for hook in left.select_related("connection").order_by("received_at")[:limit]:
        try:
            told = vault.unseal(body_place(hook.id), hook.sealed_body)
            _take(hook.connection, hook, Told(**told) if told else None)
            taken += 1
        except (LostRace, OperationalError) as error:
            log.warning("hook_left_for_later", error=type(error).__name__)
        except Exception:
            log.exception("hook_put_aside", event_id=hook.event_id)
            _put_aside(hook)
    return taken


@retried
def _put_aside(hook: Hook) -> None:
    """It was signed, so it may tell of money: somebody has to look at it."""
    if _claim(hook, "unreadable"):
        open_at(hook.connection, "message_unreadable")


def _take(connection: Connection, hook: Hook, told: Told | None) -> None:
    operation_id = _whose(connection, told) if told else None
    if told is None or told.operation_id.startswith(TRIAL):
        _claim(hook, "ignored")
    elif operation_id is None:
        _keep(connection, hook, told)
    else:
        _tell(operation_id, hook, _heard(connection, operation_id, told))


def _whose(connection: Connection, told: Told) -> UUID | None:
    """The operation that an effect belongs to, of this connection and of no other."""
    mine = Operation.objects.filter(tenant_id=connection.tenant_id, connection=connection)
    named = parse("op", told.operation_id)
    if named is not None:
        mine = mine.filter(pk=named)
    else:
        mine = mine.filter(provider_ref=told.provider_ref)
    return mine.values_list("id", flat=True).first()


def _heard(connection: Connection, operation_id: UUID, told: Told) -> Answer:
    try:
        return CONNECTORS[connection.connector].hear(call_of(loaded(operation_id), asks=False), told)
    except CannotUnseal as error:
        return Answer(Verdict.UNKNOWN, provider_ref=told.provider_ref, code="unreadable", detail=str(error))


@retried
def _tell(operation_id: UUID, hook: Hook, answer: Answer) -> None:
    locked = lock(operation_id)
    operation = locked.operation
    is_older = operation.told_at is not None and hook.told_at < operation.told_at
    if not _claim(hook, "older" if is_older else "taken") or is_older:
        return
    Operation.objects.filter(pk=operation.pk).update(told_at=hook.told_at)
    merge(locked, Evidence(Source.WEBHOOK, answer, actor=Actor("provider", "webhook")))


@retried
def _keep(connection: Connection, hook: Hook, told: Told) -> None:
    if not _claim(hook, "unmatched"):
        return
    answer = Answer(
        Verdict.UNKNOWN,
        provider_ref=told.provider_ref,
        receipt=told.effect,
        amount_minor=told.amount_minor,
        currency=told.currency,
    )
    unmatched.keep(connection, Source.WEBHOOK, answer, claims=told.operation_id)


def _claim(hook: Hook, outcome: str) -> bool:
    """Whether the message was still to be taken; it is now, with this transaction."""
    return bool(Hook.objects.filter(pk=hook.pk, taken_at=None).update(taken_at=Now(), outcome=outcome))
