"""Evidence of every kind is merged here: answers, look-ups, webhooks, late answers, people's settlements."""

from dataclasses import replace
from uuid import UUID

from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.redaction import mask_text
from agentops.kernel.sealed import Place
from agentops.tenancy import vault

from .connectors.base import Answer
from .evidence import Evidence, is_answered, is_overtaken, is_quiet, others_in_doubt, readable
from .incidents import alarm, close_incident, hold_incident, open_incident
from .models import Finding, Operation
from .moves import Locked, lock, retried
from .outcomes import (
    absent,
    accepted,
    applied,
    back_on_its_way,
    blocked,
    doubt,
    fail,
    mark_reversed,
    not_sent,
    reached,
    unreachable,
)
from .patience import has_person
from .states import FINAL, OperationStatus, Source, Verdict

_S = OperationStatus


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
    had_person = has_person(operation)
    if had_person:
        hold_incident(operation, "outcome_unknown", about=operation.public_id)
    _settle(locked, evidence)
    if had_person and not has_person(operation):
        close_incident(operation, "outcome_unknown", about=operation.public_id)


def finding_place(operation_id: UUID, number: int) -> Place:
    return Place("operations_finding", f"{operation_id}/{number}", "evidence")


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
    if is_same and answer.verdict in (Verdict.REVERSED, Verdict.REFUSED):
        _reversed(locked, evidence)
    elif is_same and evidence.source == Source.WEBHOOK:
        return  # what it was before it became what we know
    elif answer.verdict in (Verdict.APPLIED, Verdict.ACCEPTED) and (
        operation.status != _S.SUCCEEDED or answer.provider_ref not in ("", operation.provider_ref)
    ):
        alarm(
            operation, "effect_after_end", {"provider_ref": answer.provider_ref, "status": operation.status}
        )
    elif answer.verdict == Verdict.CONTRADICTION and (
        operation.status != _S.SUCCEEDED or answer.provider_ref
    ):  # a yes to something else than was asked for
        _contradicted(operation, answer)


def _contradicted(operation: Operation, answer: Answer) -> None:
    alarm(operation, "contradiction", {"code": answer.code, "detail": mask_text(answer.detail)})


def _reversed(locked: Locked, evidence: Evidence) -> None:
    """Undone by the provider after success, and by nobody here: people must look."""
    if mark_reversed(locked, evidence.actor):
        open_incident(locked.operation, "effect_reversed", about=locked.operation.public_id)


def _settle(locked: Locked, evidence: Evidence) -> None:
    operation, answer = locked.operation, evidence.answer
    if operation.status in (_S.PENDING, _S.APPROVED):
        if answer.verdict not in (Verdict.APPLIED, Verdict.ACCEPTED):
            return
        if operation.attempts == 0:  # we never sent it: somebody else's effect, or a lost record of ours
            alarm(operation, "effect_before_dispatch", {"provider_ref": answer.provider_ref})
            return
        back_on_its_way(locked)
    if evidence.source != Source.PERSON:
        reached(operation, answer)
    if is_overtaken(operation, evidence.attempt, answer.verdict):
        return
    match answer.verdict:
        case Verdict.APPLIED:
            applied(locked, evidence)
        case Verdict.ACCEPTED:
            accepted(locked, answer)
        case Verdict.REFUSED if _is_a_no(operation, evidence):
            fail(locked, answer, answer.code or "refused", evidence.actor)
        case Verdict.BLOCKED if _proves_nothing_done(operation, evidence):
            blocked(locked, answer)
        case Verdict.NOT_SENT if _proves_nothing_done(operation, evidence):
            not_sent(locked, answer)
        case Verdict.ABSENT:
            absent(locked)
        case Verdict.REVERSED:
            fail(locked, answer, "reversed", evidence.actor)
        case Verdict.UNREACHABLE | Verdict.BLOCKED:
            unreachable(locked, answer)
        case Verdict.CONTRADICTION:
            _contradicted(operation, answer)
            doubt(locked, answer)
        case _:
            doubt(locked, answer)


def _is_a_no(operation: Operation, evidence: Evidence) -> bool:
    """Whether it is over with it: by the answer, or by whoever has seen that its effect failed, and no other one.

    A look that shows none of ours proves nothing before `quiet_at`: ours may be on its way.
    """
    if evidence.source == Source.ANSWER:
        return _proves_nothing_done(operation, evidence)
    reference = evidence.answer.provider_ref
    if not reference:
        return is_quiet(operation, now())
    return reference == operation.provider_ref or not operation.provider_ref


def _proves_nothing_done(operation: Operation, evidence: Evidence) -> bool:
    """Whether a no to this one request is a no for the operation.

    While another request is in doubt it is not: "already refunded" may be the echo of our own earlier try. Nor is it
    where the provider has told of an effect already.
    """
    if evidence.source != Source.ANSWER or operation.accepted_at is not None:
        return False
    return not others_in_doubt(operation, evidence.attempt)
