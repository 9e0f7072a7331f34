"""Effects of ours that no operation here accounts for become operations: recorded as done, and never sent."""

from typing import Any
from uuid import UUID

from agentops.audit.entries import Actor
from agentops.kernel import canonical
from agentops.kernel.ids import parse, uuid7
from runs.standins import AGENT, stand_in

from .connectors.base import Answer, Intent, Told
from .dispatch import Authority
from .evidence import Evidence
from .findings import merge
from .incidents import open_incident
from .models import Connection, Operation
from .moves import Locked, lock, move, retried
from .services import Intended, digest_of, record_adopted
from .states import OperationStatus, Source, Verdict

_S = OperationStatus
SWEEPER = Actor("system", "sweep")
THERE = (Verdict.APPLIED, Verdict.ACCEPTED)


def key_of(connection: Connection, reference: str) -> str:
    """The identity of an adopted effect: where it is and what the provider calls it. Nobody proposed it."""
    return canonical.digest("operation", ["adopted", connection.tenant.slug, str(connection.id), reference])


@retried
def adopt(
    connection: Connection, told: Told, intent: Intent, answer: Answer, previous: Operation | None
) -> Operation:
    """An operation for an effect that has none: the one that it names where that row is lost, else one after `previous`.

    It may not be sent: it has no attempt, no living key, and a constraint holds it so.
    """
    tenant, named = connection.tenant, parse("op", told.operation_id)
    run = stand_in(
        tenant, SWEEPER, f"Stands in for the run whose record is lost: {told.provider_ref} is its effect."
    )
    intended = Intended(
        operation_id=named if previous is None and named is not None else uuid7(),
        action=intent.action,
        connection=connection,
        tenant=tenant,
        actor=run.actor,
        agent=AGENT,
        target=intent.target,
        params=dict(intent.params),
        reference=told.provider_ref,
        amount_minor=told.amount_minor,
        currency=told.currency,
    )
    key = key_of(connection, told.provider_ref)
    locked = record_adopted(run, intended, key, SWEEPER, previous)
    _done_without_us(locked)
    merge(locked, Evidence(Source.SWEEP, answer, actor=SWEEPER))
    return locked.operation


@retried
def settle_unsent(operation_id: UUID, answer: Answer, authority: Authority) -> Operation:
    """Evidence that an operation has happened which nobody here has sent: it is adopted where it stands, and not sent.

    Whoever was asked about it is asked no more.
    """
    locked = lock(operation_id)
    operation = locked.operation
    if operation.status == _S.PENDING and answer.verdict in THERE:
        authority.withdraw(locked, SWEEPER, "settled")
    is_unsent = operation.status in (_S.PENDING, _S.APPROVED) and operation.attempts == 0
    if is_unsent and answer.verdict in THERE:
        _done_without_us(locked)
    merge(locked, Evidence(Source.SWEEP, answer, actor=SWEEPER))
    return locked.operation


def _done_without_us(locked: Locked) -> None:
    """The legal way to where evidence can settle it, under the authority of an incident: nobody allowed it here."""
    operation = locked.operation
    incident = open_incident(operation, "effect_adopted", about=operation.public_id)
    authority: dict[str, Any] = {
        "authority_kind": "adopted",
        "authority_id": incident.id,
        "authorised_digest": digest_of(operation),
        "dispatch_after": None,
        "next_attempt_at": None,
    }
    if operation.status == _S.PENDING:
        move(locked, _S.APPROVED, reason="adopted", actor=SWEEPER, **authority)
    move(locked, _S.EXECUTING, reason="adopted", actor=SWEEPER, **authority)
