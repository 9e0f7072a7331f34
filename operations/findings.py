"""Evidence of every kind is merged here: answers, look-ups, webhooks, late answers, people's settlements."""

import random
from dataclasses import dataclass, replace
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

from .connectors.base import Answer
from .evidence import (
    MAX_TRIES,
    answers_by_key,
    flight_seconds,
    is_answered,
    is_contradicted,
    is_overtaken,
    is_quiet,
    key_lives,
    last_answer,
    look_ups_in_vain,
    others_in_doubt,
    readable,
    tries_in_vain,
)
from .grades import declared, reliance
from .incidents import CREDENTIAL_CODES, close_incident, is_open, open_incident
from .models import Finding, Operation
from .moves import Locked, facts_of, lock, move, retried
from .services import idempotency_key
from .states import FINAL, OperationStatus, Source, Verdict

MAX_LOOK_UPS = 8  # look-ups that say nothing before a person is asked; an outage does not count
BLOCKED_SECONDS = 60.0
LOOK_AGAIN_SECONDS = (1.0, 300.0)  # first and longest pause between look-ups

_S = OperationStatus


@dataclass(frozen=True)
class Evidence:
    """One answer with where it comes from; `attempt` where it answers one of ours."""

    source: Source
    answer: Answer
    attempt: int | None = None
    actor: Actor = SYSTEM


@retried
def take(operation_id: UUID, evidence: Evidence) -> Operation:
    """Record evidence and let it settle the operation where it is still open. Never fails because someone was quicker.

    An answer that is on record already (its commit was, and we were not told) changes nothing.
    """
    locked = lock(operation_id)
    merge(locked, evidence)
    return locked.operation


def merge(locked: Locked, evidence: Evidence) -> None:
    """The same for an operation that the caller has locked."""
    operation = locked.operation
    if evidence.source == Source.ANSWER and is_answered(operation, evidence.attempt or 0):
        return
    evidence = replace(evidence, answer=readable(evidence.answer))
    note(operation, evidence)
    if operation.status in FINAL:
        _about_the_past(locked, evidence)
        return
    was_asked = operation.status == _S.ESCALATED
    _settle(locked, evidence)
    if was_asked and operation.status != _S.ESCALATED:
        close_incident(operation, "outcome_unknown", about=operation.public_id)


def finding_place(operation_id: UUID, number: int) -> Place:
    return Place("operations_finding", f"{operation_id}/{number}", "evidence")


def receipt_place(operation_id: UUID) -> Place:
    return Place("operations_operation", str(operation_id), "receipt")


def note(operation: Operation, evidence: Evidence) -> None:
    """Put evidence on record for a locked operation, and draw nothing from it."""
    answer = evidence.answer
    number = operation.findings_taken + 1
    Operation.objects.filter(pk=operation.pk).update(findings_taken=number)
    operation.findings_taken = number
    Finding.objects.create(
        operation_id=operation.id,
        number=number,
        tenant_id=operation.tenant_id,
        source=evidence.source,
        verdict=answer.verdict,
        attempt=evidence.attempt,
        provider_ref=answer.provider_ref,
        code=answer.code[:60],
        sealed_evidence=sealed.seal_json(
            vault.opened(operation.data_key_id),
            finding_place(operation.id, number),
            {"detail": mask_text(answer.detail), "receipt": dict(answer.receipt or {})},
        ),
        actor=evidence.actor.name,
    )


def _about_the_past(locked: Locked, evidence: Evidence) -> None:
    """The operation has ended: evidence confirms it, tells of its reversal, or is an alarm."""
    operation, answer = locked.operation, evidence.answer
    is_same = bool(answer.provider_ref) and answer.provider_ref == operation.provider_ref
    if answer.verdict == Verdict.REVERSED or (answer.verdict == Verdict.REFUSED and is_same):
        _reversed(locked, evidence)
    elif is_same and evidence.source == Source.WEBHOOK:
        return  # what it was before it became what we know
    elif answer.verdict in (Verdict.APPLIED, Verdict.ACCEPTED) and (
        operation.status != _S.SUCCEEDED or answer.provider_ref not in ("", operation.provider_ref)
    ):
        _alarm(
            operation, "effect_after_end", {"provider_ref": answer.provider_ref, "status": operation.status}
        )


def _settle(locked: Locked, evidence: Evidence) -> None:
    operation, answer = locked.operation, evidence.answer
    if operation.status in (_S.PENDING, _S.APPROVED):
        if answer.verdict not in (Verdict.APPLIED, Verdict.ACCEPTED):
            return
        if operation.attempts == 0:  # we never sent it: somebody else's effect, or a lost record of ours
            _alarm(operation, "effect_before_dispatch", {"provider_ref": answer.provider_ref})
            return
        _back_on_its_way(locked)
    if evidence.source != Source.PERSON:
        _reached(operation, answer)
    if is_overtaken(operation, evidence.attempt, answer.verdict):
        return
    match answer.verdict:
        case Verdict.APPLIED:
            _applied(locked, evidence)
        case Verdict.ACCEPTED:
            _accepted(locked, answer)
        case Verdict.REFUSED if evidence.source != Source.ANSWER or _proves_nothing_done(operation, evidence):
            _fail(locked, answer, answer.code or "refused", evidence.actor)
        case Verdict.BLOCKED if _proves_nothing_done(operation, evidence):
            _blocked(locked, answer)
        case Verdict.NOT_SENT if _proves_nothing_done(operation, evidence):
            _not_sent(locked, answer)
        case Verdict.ABSENT:
            _absent(locked)
        case Verdict.REVERSED:
            _fail(locked, answer, "reversed", evidence.actor)
        case Verdict.UNREACHABLE | Verdict.BLOCKED:
            _unreachable(locked, answer)
        case Verdict.CONTRADICTION:
            _alarm(operation, "contradiction", {"code": answer.code, "detail": mask_text(answer.detail)})
            _doubt(locked, answer)
        case _:
            _doubt(locked, answer)


def _proves_nothing_done(operation: Operation, evidence: Evidence) -> bool:
    """Whether a no to this one request is a no for the operation.

    While another request is in doubt it is not: "already refunded" may be the echo of our own earlier try.
    """
    return evidence.source == Source.ANSWER and not others_in_doubt(operation, evidence.attempt)


def _back_on_its_way(locked: Locked) -> None:
    """A late answer to an earlier try: the operation had gone back to approved or pending, and happened after all."""
    if locked.operation.status == _S.PENDING:
        move(locked, _S.APPROVED, reason="late_answer")
    move(locked, _S.EXECUTING, reason="late_answer")


def _applied(locked: Locked, evidence: Evidence) -> None:
    operation, answer = locked.operation, evidence.answer
    if operation.provider_ref and answer.provider_ref not in ("", operation.provider_ref):
        _alarm(operation, "other_reference", {"had": operation.provider_ref, "got": answer.provider_ref})
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
        _mark_reversed(locked.undoes, evidence.actor)


def _accepted(locked: Locked, answer: Answer) -> None:
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


def _fail(locked: Locked, answer: Answer, code: str, actor: Actor = SYSTEM) -> None:
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


def _blocked(locked: Locked, answer: Answer) -> None:
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


def _not_sent(locked: Locked, answer: Answer) -> None:
    """Surely not applied, by this try or by another: it may be tried again, but not for ever."""
    tries = tries_in_vain(locked.operation)
    if tries >= MAX_TRIES:
        _fail(locked, answer, "gave_up")
        return
    pause = answer.retry_after_seconds or min(60.0, 2.0**tries)
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


def _doubt(locked: Locked, answer: Answer) -> None:
    """No answer that says anything: unknown, and the next thing is a look-up, or where there is none, our key."""
    operation = locked.operation
    if operation.status == _S.ESCALATED:
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
    elif look_ups_in_vain(operation) >= MAX_LOOK_UPS:
        escalate(locked, answer, "look_ups_say_nothing")
    else:
        Operation.objects.filter(pk=operation.pk).update(**changes)


def escalate(locked: Locked, answer: Answer, code: str) -> None:
    """Machines have no more to say about this operation in doubt: a person finds out, unless one has said to look on."""
    operation = locked.operation
    if operation.status in (_S.EXECUTING, _S.APPROVED):
        move(locked, _S.UNKNOWN, reason=answer.code or "no_answer", in_doubt=True)
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


def _absent(locked: Locked) -> None:
    """Looked up and not there. Before `quiet_at` that means nothing; after it, what was answered last decides."""
    operation = locked.operation
    if operation.status == _S.ESCALATED:
        return
    at = now()
    if operation.accepted_at is not None or not is_quiet(operation, at):
        _look_later(operation)
        return
    said, proved = last_answer(operation), reliance(operation.connection)
    if operation.attempts >= MAX_TRIES:
        escalate(locked, said, "too_many_tries")
    elif is_contradicted(operation):
        escalate(locked, said, "contradiction")
    elif said.verdict in (Verdict.REFUSED, Verdict.SPENT) and not proved.absence:
        escalate(locked, said, "absence_not_proved")
    elif said.verdict == Verdict.REFUSED:
        _fail(locked, said, said.code or "refused")
    elif not proved.keys:
        honours = declared(operation.connection).honours_idempotency_keys
        escalate(locked, said, "keys_not_proved" if honours else "absent_without_keys")
    elif said.verdict == Verdict.SPENT:
        _next_generation(locked)
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
        _next_generation(locked, actor)
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


def _next_generation(locked: Locked, actor: Actor = SYSTEM) -> None:
    """That key can bring nothing any more, and nothing was done under it: back to approved, under the next one."""
    operation = locked.operation
    generation = operation.generation + 1
    move(
        locked,
        _S.APPROVED,
        reason="proven_without_effect",
        actor=actor,
        generation=generation,
        idempotency_key=idempotency_key(operation.tenant_id, operation.operation_key, generation),
        key_expires_at=None,
        in_doubt=False,
        next_attempt_at=now(),
        lease_owner=None,
        lease_expires_at=None,
    )


def _unreachable(locked: Locked, answer: Answer) -> None:
    """An outage is not ambiguity: one incident, and every operation of that connection waits behind it."""
    operation = locked.operation
    kind = "credential_refused" if answer.verdict == Verdict.BLOCKED else "provider_unreachable"
    open_incident(operation, answer.code if answer.code in CREDENTIAL_CODES else kind)
    if operation.status == _S.EXECUTING and operation.accepted_at is None:
        _doubt(locked, answer)
    else:
        _look_later(operation)


def _reached(operation: Operation, answer: Answer) -> None:
    if answer.verdict in (
        Verdict.APPLIED,
        Verdict.ACCEPTED,
        Verdict.ABSENT,
        Verdict.REFUSED,
        Verdict.REVERSED,
    ):
        close_incident(operation, "provider_unreachable", *CREDENTIAL_CODES)


def _reversed(locked: Locked, evidence: Evidence) -> None:
    """Undone by the provider after success, and by nobody here: people must look."""
    if _mark_reversed(locked, evidence.actor):
        open_incident(locked.operation, "effect_reversed", about=locked.operation.public_id)


def _mark_reversed(locked: Locked, actor: Actor) -> bool:
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


def _alarm(operation: Operation, verb: str, detail: dict[str, Any]) -> None:
    """An incident with a security entry, once while it is open; each piece of evidence is a finding anyway."""
    if is_open(operation, verb, about=operation.public_id):
        return
    record(
        operation.tenant_id,
        f"operation.{verb}",
        "operation",
        operation.public_id,
        SYSTEM,
        detail=detail,
        security=True,
    )
    open_incident(operation, verb, about=operation.public_id)


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
