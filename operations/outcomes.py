"""What evidence does to a locked operation: each outcome is one move, or one pause until the next look."""

import random
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.redaction import mask_text
from agentops.kernel.sealed import Place
from agentops.tenancy import vault
from runs.events import Event, append

from . import patience
from .connectors.base import Answer
from .evidence import (
    MAX_TRIES,
    Evidence,
    answers_by_key,
    flight_seconds,
    is_contradicted,
    is_quiet,
    key_lives,
    last_answer,
    look_ups_in_vain,
    tries,
    tries_in_vain,
)
from .grades import declared, reliance
from .incidents import CREDENTIAL_CODES, alarm, close_incident, open_incident
from .models import Operation
from .moves import Locked, facts_of, move
from .services import idempotency_key
from .states import OperationStatus, Verdict

MAX_LOOK_UPS = 8  # look-ups that say nothing before a person is asked; an outage does not count
BLOCKED_SECONDS = 60.0
LOOK_AGAIN_SECONDS = (1.0, 300.0)  # first and longest pause between look-ups

_S = OperationStatus


def receipt_place(operation_id: UUID) -> Place:
    return Place("operations_operation", str(operation_id), "receipt")


def back_on_its_way(locked: Locked) -> None:
    """A late answer to an earlier try: the operation had gone back to approved or pending, and happened after all."""
    if locked.operation.status == _S.PENDING:
        move(locked, _S.APPROVED, reason="late_answer")
    move(locked, _S.EXECUTING, reason="late_answer")


def applied(locked: Locked, evidence: Evidence) -> None:
    operation, answer = locked.operation, evidence.answer
    if operation.provider_ref and answer.provider_ref not in ("", operation.provider_ref):
        alarm(operation, "other_reference", {"had": operation.provider_ref, "got": answer.provider_ref})
    receipt = {
        **dict(answer.receipt or {}),
        "provider_ref": answer.provider_ref,
        "found_by": evidence.source.value,
    }
    key = vault.opened(operation.data_key_id)
    move(
        locked,
        _S.SUCCEEDED,
        reason=evidence.source.value,
        actor=evidence.actor,
        told={"provider_ref": answer.provider_ref},
        provider_ref=answer.provider_ref or operation.provider_ref,
        sealed_receipt=sealed.seal_json(key, receipt_place(operation.id), receipt),
        in_doubt=False,
        error_code="",
        error_detail="",
    )
    if locked.undoes is not None:
        mark_reversed(locked.undoes, evidence.actor)


def accepted(locked: Locked, answer: Answer) -> None:
    """Taken, not settled. A reference outlives the key: only look-ups and webhooks settle it now."""
    operation = locked.operation
    changes: dict[str, Any] = {
        "provider_ref": answer.provider_ref,
        "accepted_at": operation.accepted_at or now(),
        "key_expires_at": None,
        "lease_owner": None,
        "lease_expires_at": None,
        "next_attempt_at": look_again(operation),
    }
    first_time = operation.accepted_at is None
    if operation.status == _S.ESCALATED:
        move(locked, _S.UNKNOWN, reason="accepted")
    if operation.status != _S.EXECUTING:
        move(locked, _S.EXECUTING, reason="accepted", **changes)
    else:
        Operation.objects.filter(pk=operation.pk).update(**changes)
    if first_time:
        data = {**facts_of(operation), "provider_ref": answer.provider_ref}
        for run in locked.runs.values():
            if not run.is_terminal:
                append(run, Event("operation.accepted", data))
        patience.begin(locked)


def fail(locked: Locked, answer: Answer, code: str, actor: Actor = SYSTEM) -> None:
    reference = answer.provider_ref or locked.operation.provider_ref
    move(
        locked,
        _S.FAILED,
        reason=code,
        actor=actor,
        error_code=code[:60],
        error_detail=answer.detail,
        in_doubt=False,
        provider_ref=reference,
    )


def blocked(locked: Locked, answer: Answer) -> None:
    """Our credential is refused: surely not applied. It waits, with all others of that connection, for one repair."""
    operation = locked.operation
    open_incident(operation, "credential_refused")
    move(
        locked,
        _S.APPROVED,
        reason="credential_refused",
        error_code=answer.code[:60] or "credential_refused",
        error_detail=answer.detail,
        in_doubt=False,
        next_attempt_at=_later(BLOCKED_SECONDS),
        lease_owner=None,
        lease_expires_at=None,
    )


def not_sent(locked: Locked, answer: Answer) -> None:
    """Surely not applied, by this try or by another: it may be tried again, but not for ever."""
    vain = tries_in_vain(locked.operation)
    if vain >= MAX_TRIES:
        fail(locked, answer, "gave_up")
        return
    pause = answer.retry_after_seconds or min(60.0, 2.0**vain)
    move(
        locked,
        _S.APPROVED,
        reason=answer.code or "not_sent",
        error_code=answer.code[:60],
        error_detail=answer.detail,
        in_doubt=False,
        next_attempt_at=_later(pause * random.uniform(0.75, 1.25)),
        lease_owner=None,
        lease_expires_at=None,
    )


def doubt(locked: Locked, answer: Answer) -> None:
    """No answer that says anything: unknown, and the next thing is a look-up, or where there is none, our key."""
    operation = locked.operation
    if operation.status == _S.ESCALATED:
        return
    if _stays_accepted(operation, answer):
        _look_later(operation)
        return
    can = declared(operation.connection)
    asks_by_key = not can.can_look_up and answers_by_key(operation, answer)
    if not can.can_look_up and not asks_by_key:
        escalate(locked, answer, "cannot_be_looked_up")
        return
    changes: dict[str, Any] = {
        "in_doubt": True,
        "next_attempt_at": operation.quiet_at if asks_by_key else look_again(operation),
        "lease_owner": None,
        "lease_expires_at": None,
        "error_code": answer.code[:60],
        "error_detail": mask_text(answer.detail)[:500],
    }
    if answer.verdict == Verdict.BUSY:  # it counts as an attempt in flight
        changes["quiet_at"] = _later(flight_seconds(operation))
    if operation.status == _S.EXECUTING:
        move(locked, _S.UNKNOWN, reason=answer.code or "no_answer", **changes)
        patience.begin(locked)
    elif look_ups_in_vain(operation) >= MAX_LOOK_UPS:
        escalate(locked, answer, "look_ups_say_nothing")
    else:
        Operation.objects.filter(pk=operation.pk).update(**changes)


def _stays_accepted(operation: Operation, answer: Answer) -> bool:
    """What the provider has taken is not unknown for a look, or a lost answer, that says nothing; for a yes to another it is."""
    is_accepted = operation.status == _S.EXECUTING and operation.accepted_at is not None
    is_silent = answer.verdict != Verdict.CONTRADICTION
    return is_accepted and is_silent and look_ups_in_vain(operation) < MAX_LOOK_UPS


def escalate(locked: Locked, answer: Answer, code: str) -> None:
    """Machines have no more to say about this operation in doubt: a person finds out, unless one has said to look on."""
    operation = locked.operation
    if operation.status in (_S.EXECUTING, _S.APPROVED):
        move(locked, _S.UNKNOWN, reason=answer.code or "no_answer", in_doubt=True)
        patience.begin(locked)
    if operation.look_until is not None and now() < operation.look_until:
        _look_later(operation)
    elif operation.status == _S.UNKNOWN:
        move(
            locked,
            _S.ESCALATED,
            reason=code,
            in_doubt=True,
            next_attempt_at=None,
            lease_owner=None,
            lease_expires_at=None,
            error_code=code,
            error_detail=answer.detail,
        )
        open_incident(operation, "outcome_unknown", about=operation.public_id)


def absent(locked: Locked) -> None:
    """Looked up and not there. Before `quiet_at` that means nothing; after it, what was answered last decides."""
    operation = locked.operation
    if operation.status == _S.ESCALATED:
        return
    at = now()
    if operation.accepted_at is not None or not is_quiet(operation, at):
        _look_later(operation)
        return
    said, proved = last_answer(operation), reliance(operation.connection)
    if tries(operation) >= MAX_TRIES:
        escalate(locked, said, "too_many_tries")
    elif is_contradicted(operation):
        escalate(locked, said, "contradiction")
    elif said.verdict in (Verdict.REFUSED, Verdict.SPENT) and not proved.absence:
        escalate(locked, said, "absence_not_proved")
    elif said.verdict == Verdict.REFUSED:
        fail(locked, said, said.code or "refused")
    elif not proved.keys:
        honours = declared(operation.connection).honours_idempotency_keys
        escalate(locked, said, "keys_not_proved" if honours else "absent_without_keys")
    elif said.verdict == Verdict.SPENT:
        next_generation(locked, "proven_without_effect")
    elif not key_lives(operation, at):  # nothing would catch a second effect any more
        escalate(locked, said, "absent_key_expired")
    else:  # absence is no proof, but our key is: `may_be_sent_again`
        Operation.objects.filter(pk=operation.pk).update(next_attempt_at=at)


def send_again(locked: Locked, actor: Actor) -> None:
    """A person lets it be sent again: approved, and everything is checked anew before it leaves.

    The same generation stays in doubt until its answer is there.
    """
    operation = locked.operation
    if last_answer(operation).verdict == Verdict.SPENT:
        next_generation(locked, "proven_without_effect", actor)
        return
    move(
        locked,
        _S.APPROVED,
        reason="send_again",
        actor=actor,
        next_attempt_at=now(),
        dispatch_after=None,
        error_code="",
        error_detail="",
    )


def next_generation(locked: Locked, reason: str, actor: Actor = SYSTEM) -> None:
    """That key can bring nothing any more, and nothing was done under it: approved, under the next one."""
    operation = locked.operation
    generation = operation.generation + 1
    move(
        locked,
        _S.APPROVED,
        reason=reason,
        actor=actor,
        generation=generation,
        idempotency_key=idempotency_key(operation.tenant_id, operation.operation_key, generation),
        key_expires_at=None,
        in_doubt=False,
        next_attempt_at=now(),
        lease_owner=None,
        lease_expires_at=None,
    )


def unreachable(locked: Locked, answer: Answer) -> None:
    """An outage is not ambiguity: one incident, and every operation of that connection waits behind it."""
    operation = locked.operation
    kind = "credential_refused" if answer.verdict == Verdict.BLOCKED else "provider_unreachable"
    open_incident(operation, answer.code if answer.code in CREDENTIAL_CODES else kind)
    if operation.status == _S.EXECUTING and operation.accepted_at is None:
        doubt(locked, answer)
    else:
        _look_later(operation)


def reached(operation: Operation, answer: Answer) -> None:
    if answer.verdict in (
        Verdict.APPLIED,
        Verdict.ACCEPTED,
        Verdict.ABSENT,
        Verdict.REFUSED,
        Verdict.REVERSED,
    ):
        close_incident(operation, "provider_unreachable", *CREDENTIAL_CODES)


def mark_reversed(locked: Locked, actor: Actor) -> bool:
    """An effect that is no more: the status stays, the record says so. False where it did already."""
    operation = locked.operation
    if operation.reversed_at is not None or operation.status != _S.SUCCEEDED:
        return False
    Operation.objects.filter(pk=operation.pk).update(reversed_at=now())
    data = {**facts_of(operation), "provider_ref": operation.provider_ref}
    for run in locked.runs.values():
        if not run.is_terminal:  # the terminal event is always the last
            append(run, Event("operation.reversed", data))
    record(operation.tenant_id, "operation.reversed", "operation", operation.public_id, actor)
    return True


def _look_later(operation: Operation) -> None:
    Operation.objects.filter(pk=operation.pk).update(
        next_attempt_at=look_again(operation), lease_owner=None, lease_expires_at=None
    )


def look_again(operation: Operation) -> datetime:
    """Pauses grow with the number of findings; the first look-up that can mean something is at `quiet_at`."""
    first, longest = LOOK_AGAIN_SECONDS
    pause = min(longest, first * 1.6 ** min(operation.findings_taken, 20))
    return _later(pause * random.uniform(0.9, 1.1))


def _later(seconds: float) -> datetime:
    return now() + timedelta(seconds=seconds)
