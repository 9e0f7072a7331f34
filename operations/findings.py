"""Evidence of every kind is merged here: answers, look-ups, webhooks, late answers, people's settlements."""

import random
from dataclasses import dataclass
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
from .grades import declared, reliance
from .incidents import close_incident, open_incident
from .models import Finding, Operation
from .moves import Locked, facts_of, lock, move, retried
from .services import idempotency_key
from .states import FINAL, OperationStatus, Source, Verdict

MAX_TRIES = 5  # requests on the wire before a person or a failure ends it
MAX_LOOK_UPS = 8  # look-ups that say nothing before a person is asked; an outage does not count
BLOCKED_SECONDS = 60.0
LOOK_AGAIN_SECONDS = (1.0, 300.0)  # first and longest pause between look-ups
KEY_MARGIN_SECONDS = 75.0  # before a key dies it is no longer trusted: the longest flight and a minute

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
    """Record evidence and let it settle the operation where it is still open. Never fails because someone was quicker."""
    locked = lock(operation_id)
    merge(locked, evidence)
    return locked.operation


def merge(locked: Locked, evidence: Evidence) -> None:
    """The same for an operation that the caller has locked."""
    note(locked.operation, evidence)
    if locked.operation.status in FINAL:
        _about_the_past(locked, evidence)
    else:
        _settle(locked, evidence)


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
    match answer.verdict:
        case Verdict.APPLIED:
            _applied(locked, evidence)
        case Verdict.ACCEPTED:
            _accepted(locked, answer)
        case Verdict.REFUSED:
            _refused(locked, evidence)
        case Verdict.BLOCKED if evidence.source == Source.ANSWER and not operation.in_doubt:
            _blocked(locked, answer)
        case Verdict.NOT_SENT if evidence.source == Source.ANSWER:
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


def _accepted(locked: Locked, answer: Answer) -> None:
    """Taken, not settled. A reference outlives the key: only look-ups and webhooks settle it now."""
    operation = locked.operation
    changes: dict[str, Any] = {
        "provider_ref": answer.provider_ref,
        "accepted_at": operation.accepted_at or now(),
        "key_expires_at": None,
        "lease_owner": None,
        "lease_expires_at": None,
        "next_attempt_at": _look_again(operation),
    }
    first_time = operation.accepted_at is None
    if operation.status != _S.EXECUTING:
        move(locked, _S.EXECUTING, reason="accepted", **changes)
    else:
        Operation.objects.filter(pk=operation.pk).update(**changes)
    if first_time:
        data = {**facts_of(operation), "provider_ref": answer.provider_ref}
        for run in locked.runs.values():
            if not run.is_terminal:
                append(run, Event("operation.accepted", data))


def _refused(locked: Locked, evidence: Evidence) -> None:
    operation, answer = locked.operation, evidence.answer
    if operation.in_doubt and evidence.source == Source.ANSWER:
        # "Already refunded" may be the echo of our own earlier try: look before believing it.
        _doubt(locked, answer)
        return
    _fail(locked, answer, answer.code or "refused", evidence.actor)


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
        next_attempt_at=_later(BLOCKED_SECONDS),
        lease_owner=None,
        lease_expires_at=None,
    )


def _not_sent(locked: Locked, answer: Answer) -> None:
    """Surely not applied by this try; what earlier tries did stays in doubt."""
    operation = locked.operation
    if operation.in_doubt:
        _doubt(locked, answer)
        return
    if operation.attempts >= MAX_TRIES:
        _fail(locked, answer, "gave_up")
        return
    pause = answer.retry_after_seconds or min(60.0, 2.0**operation.attempts)
    move(
        locked,
        _S.APPROVED,
        reason=answer.code or "not_sent",
        error_code=answer.code[:60],
        error_detail=answer.detail,
        next_attempt_at=_later(pause * random.uniform(0.75, 1.25)),
        lease_owner=None,
        lease_expires_at=None,
    )


def _doubt(locked: Locked, answer: Answer) -> None:
    """No answer that says anything: unknown, and the next thing is a look-up, or where there is none, our key."""
    operation = locked.operation
    can = declared(operation.connection)
    asks_by_key = not can.can_look_up and _answers_by_key(operation, answer)
    if not can.can_look_up and not asks_by_key:
        escalate(locked, answer, "cannot_be_looked_up")
        return
    changes: dict[str, Any] = {
        "in_doubt": True,
        "next_attempt_at": operation.quiet_at if asks_by_key else _look_again(operation),
        "lease_owner": None,
        "lease_expires_at": None,
        "error_code": answer.code[:60],
        "error_detail": mask_text(answer.detail)[:500],
    }
    if answer.verdict == Verdict.BUSY:  # it counts as an attempt in flight
        changes["quiet_at"] = _later(15.0 + can.look_up_lag_seconds)
    if operation.status == _S.EXECUTING:
        move(locked, _S.UNKNOWN, reason=answer.code or "no_answer", **changes)
    elif _inconclusive_look_ups(operation) >= MAX_LOOK_UPS:
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
    if operation.accepted_at is not None or not _is_quiet(operation, at):
        _look_later(operation)
        return
    last, proved = _last_answer(operation), reliance(operation.connection)
    said = Answer(Verdict(last.verdict) if last else Verdict.UNKNOWN, code=last.code if last else "no_answer")
    if operation.attempts >= MAX_TRIES:
        escalate(locked, said, "too_many_tries")
    elif said.verdict == Verdict.CONTRADICTION:
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
    elif not _key_lives(operation, at):  # nothing would catch a second effect any more
        escalate(locked, said, "absent_key_expired")
    else:  # absence is no proof, but our key is: `may_be_sent_again`
        Operation.objects.filter(pk=operation.pk).update(next_attempt_at=at)


def may_be_sent_again(operation: Operation) -> bool:
    """Whether the same bytes may go out under the same key: the last look-up, after `quiet_at`, found nothing.

    Where nothing can be looked up, a proved and living key brings the stored answer.
    """
    if operation.status != _S.UNKNOWN or not reliance(operation.connection).keys:
        return False
    if not declared(operation.connection).can_look_up:
        last_answer = _last_answer(operation)
        said = Answer(Verdict(last_answer.verdict) if last_answer else Verdict.UNKNOWN)
        return _is_quiet(operation, now()) and _answers_by_key(operation, said)
    last = Finding.objects.filter(operation_id=operation.id).order_by("-number").first()
    return (
        last is not None
        and (last.source, last.verdict) == (Source.LOOK_UP, Verdict.ABSENT)
        and _is_quiet(operation, last.at)
        and _key_lives(operation, now())
    )


def _answers_by_key(operation: Operation, said: Answer) -> bool:
    """Whether, after that answer, the same request under its key would still be answered and could do nothing twice."""
    return (
        said.verdict in (Verdict.UNKNOWN, Verdict.BUSY)
        and operation.attempts < MAX_TRIES
        and reliance(operation.connection).keys
        and _key_lives(operation, now())
    )


def may_be_sent_by_a_person(operation: Operation) -> bool:
    """Whether "send again" is safe where machines have given up, by the rules that they obey as well.

    A look-up after `quiet_at` found nothing, and our proved key still catches what an earlier try may have done, or is spent.
    """
    last, proved = _last_answer(operation), reliance(operation.connection)
    said = Verdict(last.verdict) if last else Verdict.UNKNOWN
    if operation.accepted_at is not None or said == Verdict.CONTRADICTION:
        return False
    if not _looked_up_and_absent(operation):
        return False
    return proved.absence if said == Verdict.SPENT else proved.keys and _key_lives(operation, now())


def send_again(locked: Locked, actor: Actor) -> None:
    """A person lets it be sent again: approved, and everything is checked anew before it leaves.

    The same generation stays in doubt until its answer is there.
    """
    operation = locked.operation
    last = _last_answer(operation)
    if last is not None and last.verdict == Verdict.SPENT:
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


def _looked_up_and_absent(operation: Operation) -> bool:
    """Whether the newest look-up, after `quiet_at`, found nothing."""
    looks = Finding.objects.filter(operation_id=operation.id, source=Source.LOOK_UP)
    last = looks.order_by("-number").first()
    return last is not None and last.verdict == Verdict.ABSENT and _is_quiet(operation, last.at)


def _is_quiet(operation: Operation, at: datetime) -> bool:
    """Whether at that time no request of ours could be on its way or not yet be seen."""
    return operation.quiet_at is None or at >= operation.quiet_at


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
    open_incident(operation, kind)
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
        close_incident(operation, "provider_unreachable")
        close_incident(operation, "credential_refused")


def _reversed(locked: Locked, evidence: Evidence) -> None:
    """Undone by the provider after success: the status stays, the record says so."""
    operation = locked.operation
    if operation.reversed_at is not None or operation.status != _S.SUCCEEDED:
        return
    Operation.objects.filter(pk=operation.pk).update(reversed_at=now())
    data = {**facts_of(operation), "provider_ref": operation.provider_ref}
    for run in locked.runs.values():
        if not run.is_terminal:  # the terminal event is always the last
            append(run, Event("operation.reversed", data))
    record(operation.tenant_id, "operation.reversed", "operation", operation.public_id, evidence.actor)
    open_incident(operation, "effect_reversed", about=operation.public_id)


def _alarm(operation: Operation, verb: str, detail: dict[str, Any]) -> None:
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


def _last_answer(operation: Operation) -> Finding | None:
    answers = Finding.objects.filter(operation_id=operation.id, source=Source.ANSWER)
    return answers.order_by("-number").first()


def _inconclusive_look_ups(operation: Operation) -> int:
    return Finding.objects.filter(
        operation_id=operation.id, source=Source.LOOK_UP, verdict=Verdict.UNKNOWN
    ).count()


def _key_lives(operation: Operation, at: datetime) -> bool:
    expires = operation.key_expires_at
    return expires is not None and at + timedelta(seconds=KEY_MARGIN_SECONDS) < expires


def _look_later(operation: Operation) -> None:
    Operation.objects.filter(pk=operation.pk).update(
        next_attempt_at=_look_again(operation), lease_owner=None, lease_expires_at=None
    )


def _look_again(operation: Operation) -> datetime:
    """Pauses grow with the number of findings; the first look-up that can mean something is at `quiet_at`."""
    first, longest = LOOK_AGAIN_SECONDS
    pause = min(longest, first * 1.6 ** min(operation.findings_taken, 20))
    return _later(pause * random.uniform(0.9, 1.1))


def _later(seconds: float) -> datetime:
    return now() + timedelta(seconds=seconds)
