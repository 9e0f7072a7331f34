"""A piece of evidence, and what those on record prove: nothing on its way, nothing done, a key that still lives. Reads only."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from agentops.audit.entries import SYSTEM, Actor
from agentops.kernel.clock import now
from agentops.kernel.redaction import printable

from .connectors.base import Answer
from .connectors.wire import MAX_NESTING, is_deeper
from .grades import declared, reliance
from .models import Attempt, Finding, Operation
from .states import OperationStatus, Source, Verdict

MAX_TRIES = 5  # requests on the wire before a person or a failure ends it
SEND_WITHIN_SECONDS = 5.0  # from the commit of an attempt to its first byte
KEY_MARGIN_SECONDS = 60.0  # before a key dies it is no longer trusted: the longest flight and this
MAX_RETRY_AFTER_SECONDS = 3600.0  # what a provider may ask us to wait at a time
REFERENCE_CHARS = 120

PROVES_NOTHING_DONE = (Verdict.NOT_SENT, Verdict.BLOCKED, Verdict.REFUSED)  # said of one request
_SAYS_IT_HAPPENED = (Verdict.APPLIED, Verdict.ACCEPTED)


@dataclass(frozen=True)
class Evidence:
    """One answer with where it comes from; `attempt` where it answers one of ours."""

    source: Source
    answer: Answer
    attempt: int | None = None
    actor: Actor = SYSTEM


def flight_seconds(operation: Operation) -> float:
    """From the commit of an attempt until its effect, if any, can be seen by a look-up."""
    longest = SEND_WITHIN_SECONDS + settings.AGENTOPS_SEND_SECONDS
    return longest + declared(operation.connection).look_up_lag_seconds


def may_be_sent_again(operation: Operation) -> bool:
    """Whether the same bytes may go out under the same key: the last look-up, after `quiet_at`, found nothing.

    Where nothing can be looked up, a proved and living key brings the stored answer.
    """
    if operation.status != OperationStatus.UNKNOWN or not reliance(operation.connection).keys:
        return False
    if not declared(operation.connection).can_look_up:
        return is_quiet(operation, now()) and answers_by_key(operation, last_answer(operation))
    last = Finding.objects.filter(operation_id=operation.id).order_by("-number").first()
    return (
        last is not None
        and (last.source, last.verdict) == (Source.LOOK_UP, Verdict.ABSENT)
        and is_quiet(operation, last.at)
        and key_lives(operation, now())
    )


def answers_by_key(operation: Operation, said: Answer) -> bool:
    """Whether, after that answer, the same request under its key would still be answered and could do nothing twice."""
    return (
        said.verdict in (Verdict.UNKNOWN, Verdict.BUSY)
        and not is_contradicted(operation)
        and tries(operation) < MAX_TRIES
        and reliance(operation.connection).keys
        and key_lives(operation, now())
    )


def may_be_sent_by_a_person(operation: Operation) -> bool:
    """Whether "send again" is safe where machines have given up, by the rules that they obey as well.

    A look-up after `quiet_at` found nothing, and our proved key still catches what an earlier try may have done, or is spent.
    """
    said, proved = last_answer(operation).verdict, reliance(operation.connection)
    if operation.accepted_at is not None or _speaks_of_another(operation):
        return False
    looks = Finding.objects.filter(operation_id=operation.id, source=Source.LOOK_UP)
    last = looks.order_by("-number").first()
    if last is None or last.verdict != Verdict.ABSENT or not is_quiet(operation, last.at):
        return False
    return proved.absence if said == Verdict.SPENT else proved.keys and key_lives(operation, now())


def is_quiet(operation: Operation, at: datetime) -> bool:
    """Whether at that time no request of ours could be on its way or not yet be seen."""
    return operation.quiet_at is None or at >= operation.quiet_at


def key_lives(operation: Operation, at: datetime) -> bool:
    """Whether a request that leaves now would still be known by its key when it arrives."""
    expires = operation.key_expires_at
    margin = SEND_WITHIN_SECONDS + settings.AGENTOPS_SEND_SECONDS + KEY_MARGIN_SECONDS
    return expires is not None and at + timedelta(seconds=margin) < expires


def key_is_spent(operation: Operation, at: datetime) -> bool:
    """Whether its generation was sent under a key that may be dead when another request arrives: it is sent never again."""
    return operation.key_expires_at is not None and not key_lives(operation, at)


def last_answer(operation: Operation) -> Answer:
    """What the latest request was answered; UNKNOWN where no answer came."""
    answers = Finding.objects.filter(
        operation_id=operation.id, source=Source.ANSWER, attempt=operation.attempts
    )
    last = answers.order_by("-number").first()
    if last is None:
        return Answer(Verdict.UNKNOWN, code="no_answer")
    return Answer(Verdict(last.verdict), code=last.code)


def is_answered(operation: Operation, attempt: int) -> bool:
    """Whether that request's answer is on record: it has one, however often it is brought."""
    answers = Finding.objects.filter(operation_id=operation.id, source=Source.ANSWER)
    return answers.filter(attempt=attempt).exists()


def others_in_doubt(operation: Operation, attempt: int | None) -> bool:
    """Whether a request beside that one may have had an effect: no answer proves that it had none."""
    return operation.in_doubt and _unproven(operation).exclude(number=attempt or 0).exists()


def in_doubt_since(operation: Operation) -> datetime | None:
    """When the first request was committed that may have had an effect; None where none may."""
    return _unproven(operation).order_by("number").values_list("started_at", flat=True).first()


def _unproven(operation: Operation) -> QuerySet[Attempt]:
    """Requests of its generation that no answer proves to have done nothing."""
    proven = Finding.objects.filter(
        operation_id=operation.id, source=Source.ANSWER, verdict__in=PROVES_NOTHING_DONE
    )
    tries = Attempt.objects.filter(operation_id=operation.id, generation=operation.generation)
    return tries.exclude(number__in=proven.values("attempt"))


def is_overtaken(operation: Operation, attempt: int | None, verdict: Verdict) -> bool:
    """Whether this is a no to an earlier request while a later one is on its way: on record, and no reason to move."""
    return (
        attempt is not None
        and attempt < operation.attempts
        and operation.status == OperationStatus.EXECUTING
        and verdict not in (*_SAYS_IT_HAPPENED, Verdict.CONTRADICTION)
    )


def is_contradicted(operation: Operation) -> bool:
    """Whether anything ever spoke of another amount, target or body: machines send it never again."""
    said = Finding.objects.filter(operation_id=operation.id, verdict=Verdict.CONTRADICTION)
    return said.exists()


def _speaks_of_another(operation: Operation) -> bool:
    """The same without answers that were a success and named no effect at all: our key still catches what they left out."""
    said = Finding.objects.filter(operation_id=operation.id, verdict=Verdict.CONTRADICTION)
    return said.exclude(code="no_receipt", provider_ref="").exists()


def look_ups_in_vain(operation: Operation) -> int:
    """Look-ups that were answered and told nothing; an outage does not count."""
    said = [Verdict.UNKNOWN, Verdict.CONTRADICTION]
    look_ups = Finding.objects.filter(operation_id=operation.id, source=Source.LOOK_UP)
    return look_ups.filter(verdict__in=said).count()


def tries(operation: Operation) -> int:
    """Requests on the wire; one that met a refused credential, which waits for its repair as long as that takes, is none."""
    answers = Finding.objects.filter(operation_id=operation.id, source=Source.ANSWER)
    return operation.attempts - answers.filter(verdict=Verdict.BLOCKED).count()


def tries_in_vain(operation: Operation) -> int:
    """Requests that surely had no effect and may be made again; a refused credential does not count."""
    answers = Finding.objects.filter(operation_id=operation.id, source=Source.ANSWER)
    return answers.filter(verdict=Verdict.NOT_SENT).count()


def readable(answer: Answer) -> Answer:
    """`answer` as it can be stored, whatever a provider wrote into it. A yes under a name that cannot be kept proves nothing."""
    wait = answer.retry_after_seconds
    if wait is not None:
        wait = min(max(wait, 0.0), MAX_RETRY_AFTER_SECONDS) if math.isfinite(wait) else None
    reference = printable(answer.provider_ref, REFERENCE_CHARS)
    clean = replace(
        answer,
        code=printable(answer.code, 60),
        detail=printable(answer.detail, 2_000),
        receipt={} if is_deeper(answer.receipt, MAX_NESTING) else _readable(answer.receipt),
        retry_after_seconds=wait,
    )
    if reference == answer.provider_ref:
        return clean
    verdict = Verdict.CONTRADICTION if answer.verdict in _SAYS_IT_HAPPENED else answer.verdict
    return replace(clean, verdict=verdict, provider_ref="", code="unusable_reference")


def _readable[Json](value: Json) -> Json:
    match value:
        case str():
            return printable(value, 10_000)  # type: ignore[return-value]
        case dict():
            return {printable(str(key), 200): _readable(item) for key, item in value.items()}  # type: ignore[return-value]
        case list() | tuple():
            return [_readable(item) for item in value]  # type: ignore[return-value]
    return value
