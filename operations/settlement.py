"""Settling by people: what somebody with that right says became of an operation that machines cannot find out about."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now, now
from agentops.kernel.ids import show, uuid7
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.kernel.redaction import printable
from agentops.kernel.sealed import Place
from agentops.tenancy import vault
from agentops.tenancy.models import User
from runs.wakeups import ring_operations

from .connectors.base import Answer
from .dispatch import loaded
from .evidence import Evidence, may_be_sent_by_a_person
from .findings import merge, note, take
from .grades import declared
from .incidents import close_incident
from .models import Operation, SettleLimit, Settlement
from .moves import Locked, lock, move, retried
from .outcomes import send_again
from .patience import has_person
from .reconcile import ask
from .states import FINAL, WITHOUT_EFFECT, OperationStatus, PersonsVerdict, Source, Verdict

MAX_WORDS_CHARS = 2_000
LOOK_HOURS = 24  # how long a person's "keep looking" holds back the next question, unless said otherwise
MAX_LOOK_HOURS = 24 * 30

_S, _P = OperationStatus, PersonsVerdict


@dataclass(frozen=True)
class Says:
    """What a person says. `words` are the reason, and for *did not* the proof; `provider_ref` is for *happened*."""

    verdict: PersonsVerdict
    words: str
    provider_ref: str = ""
    look_hours: int = LOOK_HOURS


@dataclass(frozen=True)
class Settled:
    """What came of it: `settled`; `waits` for a second person; `quicker`: it had been found out, or moved on, before."""

    operation: Operation
    how: str


@dataclass(frozen=True)
class _Checked:
    """What the provider says to it: `is_verified` where it agrees, or where it never can be asked."""

    is_verified: bool
    answer: Answer = field(default_factory=lambda: Answer(Verdict.UNKNOWN))


def words_place(settlement_id: UUID) -> Place:
    return Place("operations_settlement", str(settlement_id), "words")


def settle(tenant_id: int, operation_id: UUID, says: Says, *, person: User, channel: str) -> Settled:
    """Let a person's word act on an operation in doubt, as a finding, where nobody was quicker.

    Raises NotFound; NotYours (no_right, own_request); Invalid (reason_required, reference_required); Conflict
    (not_in_doubt, not_quiet, not_confirmed, of_another, not_safe, cannot_look, already_asked).
    """
    operation = (
        Operation.objects.select_related("tenant").filter(tenant_id=tenant_id, pk=operation_id).first()
    )
    if operation is None:
        raise NotFound("There is no such operation.")
    _entitled(operation, person, channel)
    says = _complete(says)
    if operation.status in FINAL:
        return Settled(operation, "quicker")
    if operation.status not in (_S.UNKNOWN, _S.ESCALATED):
        raise Conflict(f"{operation} is {operation.status}: there is nothing to settle.", code="not_in_doubt")
    _not_before_quiet(operation, says)
    checked = _ask_provider(loaded(operation_id), says)
    return _act(operation_id, says, person, channel, checked)


def _entitled(operation: Operation, person: User, channel: str) -> None:
    if _may_settle(operation, person):
        return
    with transaction.atomic():
        record(
            operation.tenant_id,
            "operation.refused_settler",
            "operation",
            operation.public_id,
            Actor(f"user:{person.pk}", channel),
            security=True,
        )
    raise NotYours(f"You may not settle operations of {operation.tenant}.", code="no_right")


def _may_settle(operation: Operation, person: User) -> bool:
    return person.is_active and person.has_perm("tenancy.settle_operations", operation.tenant)


def _complete(says: Says) -> Says:
    words = printable(says.words.strip(), MAX_WORDS_CHARS)
    reference = printable(says.provider_ref.strip(), 120)
    if not words:
        proof = "what proves that it did not happen" if says.verdict == _P.DID_NOT else "why"
        raise Invalid(f"Say {proof}; it is kept.", code="reason_required")
    if says.verdict == _P.HAPPENED and not reference:
        raise Invalid("Give the provider's reference of what happened.", code="reference_required")
    if not 1 <= says.look_hours <= MAX_LOOK_HOURS:
        raise Invalid(f"Keep looking for 1 to {MAX_LOOK_HOURS} hours.", code="look_hours")
    return replace(says, words=words, provider_ref=reference if says.verdict == _P.HAPPENED else "")


def _not_before_quiet(operation: Operation, says: Says) -> None:
    """Before then a request of ours may be on its way, or done and not to be seen: no look proves anything."""
    quiet_at = operation.quiet_at
    if says.verdict in (_P.DID_NOT, _P.SEND_AGAIN) and quiet_at is not None and now() < quiet_at:
        raise Conflict(
            f"A request may still be on its way or not yet be seen. Look again after {quiet_at:%H:%M:%S} UTC.",
            code="not_quiet",
            extra={"quiet_at": quiet_at.isoformat()},
        )


def _not_of_another(operation: Operation, says: Says) -> None:
    """One effect is the proof of one operation; where the provider can be asked, it says so before."""
    if not says.provider_ref:
        return
    proved = Operation.objects.filter(
        tenant_id=operation.tenant_id, connection=operation.connection, provider_ref=says.provider_ref
    )
    other = proved.exclude(pk=operation.pk).exclude(status__in=WITHOUT_EFFECT).first()
    if other is not None:
        raise Conflict(
            f"{says.provider_ref} is the effect of {other}. Give the reference of this one's.",
            code="of_another",
        )


def _ask_provider(operation: Operation, says: Says) -> _Checked:
    """The provider's own word comes before a person's: what it shows is taken as evidence, whatever is said."""
    can = declared(operation.connection)
    if says.verdict == _P.KEEP_LOOKING:
        if not can.can_look_up:
            raise Conflict("This provider cannot be asked; nothing more will be seen.", code="cannot_look")
        return _Checked(True)
    if not can.can_look_up:
        return _Checked(True)
    answer = ask(operation, says.provider_ref)
    is_it = answer.verdict == Verdict.APPLIED and answer.provider_ref == says.provider_ref
    if says.verdict == _P.HAPPENED and is_it:
        return _Checked(True, answer)
    if answer.verdict not in (Verdict.UNREACHABLE, Verdict.BLOCKED):
        after = take(operation.id, Evidence(Source.LOOK_UP, answer))
        if says.verdict == _P.HAPPENED and after.status in (_S.UNKNOWN, _S.ESCALATED):
            raise Conflict(
                f"The provider does not show {says.provider_ref} as the effect of {operation}. Check the reference.",
                code="not_confirmed",
            )
    elif says.verdict == _P.SEND_AGAIN:
        raise Conflict("The provider cannot be asked now, so sending again is not safe.", code="not_safe")
    return _Checked(answer.verdict == Verdict.ABSENT, answer)


@retried
def _act(operation_id: UUID, says: Says, person: User, channel: str, checked: _Checked) -> Settled:
    locked = lock(operation_id)
    operation = locked.operation
    if operation.status not in (_S.UNKNOWN, _S.ESCALATED):
        return Settled(operation, "quicker")  # and what the person said is no evidence against what was found
    _not_before_quiet(operation, says)
    _not_of_another(operation, says)
    if says.verdict == _P.SEND_AGAIN and not may_be_sent_by_a_person(operation):
        raise Conflict(
            "Sending again is not safe: nothing would stop a second effect. Look at the provider, then say"
            " whether it happened.",
            code="not_safe",
        )
    opened = Settlement.objects.filter(
        tenant_id=operation.tenant_id, operation=operation, closed_at=None
    ).first()
    first = _first_of_two(locked, opened, says, person)
    is_enough = first is not None or _alone(locked, says, person, checked.is_verified)
    settlement_id = first.id if first else uuid7()
    if is_enough:
        had_person = has_person(operation)
        _merge(locked, says, settlement_id, Actor(f"user:{person.pk}", channel), checked.answer)
        if had_person and not has_person(operation):
            close_incident(operation, "outcome_unknown", about=operation.public_id)
    elif opened is not None and opened.by_id == person.pk and _same(opened, says):
        raise Conflict("You have said so already; a second person is needed.", code="already_asked")
    if first is not None:
        Settlement.objects.filter(pk=first.pk).update(
            confirmed_by=person, closed_at=Now(), closed_as="settled"
        )
    else:
        if opened is not None:
            Settlement.objects.filter(pk=opened.pk).update(closed_at=Now(), closed_as="replaced")
        _write(settlement_id, operation, says, person, channel, is_closed=is_enough)
    verb = "settle_confirmed" if first else "settled_by_person" if is_enough else "settle_asked"
    _audit(operation, verb, settlement_id, says, Actor(f"user:{person.pk}", channel))
    return Settled(operation, "settled" if is_enough else "waits")


def _first_of_two(locked: Locked, opened: Settlement | None, says: Says, person: User) -> Settlement | None:
    """What another person has said already and `person` now says too, with which it is enough.

    The word of one who has lost the right since is none any more.
    """
    if opened is None or opened.by_id == person.pk or not _same(opened, says):
        return None
    if not _may_settle(locked.operation, opened.by):
        return None
    if f"user:{person.pk}" in locked.askers:
        raise NotYours("You asked for this operation, so somebody else confirms.", code="own_request")
    return opened


def _alone(locked: Locked, says: Says, person: User, is_verified: bool) -> bool:
    """Whether this person's word is enough: within the limit, for what somebody else has asked for, and verified."""
    if says.verdict == _P.KEEP_LOOKING:
        return True
    is_own = f"user:{person.pk}" in locked.askers
    return is_verified and not is_own and is_within_limit(person, locked.operation)


def _same(opened: Settlement, says: Says) -> bool:
    return (opened.verdict, opened.provider_ref) == (says.verdict, says.provider_ref)


def is_within_limit(person: User, operation: Operation) -> bool:
    """Whether `person` may settle that amount alone: the action's own limit before the general one, none is none."""
    if operation.amount_minor is None:
        return True
    limits = SettleLimit.objects.filter(
        tenant_id=operation.tenant_id,
        person=person,
        currency=operation.currency,
        action__in=[operation.action, ""],
    )
    limit = max(limits, key=lambda each: each.action, default=None)
    return limit is not None and operation.amount_minor <= limit.each_minor


def _write(
    settlement_id: UUID, operation: Operation, says: Says, person: User, channel: str, *, is_closed: bool
) -> None:
    key = vault.opened(operation.data_key_id)
    Settlement.objects.create(
        id=settlement_id,
        tenant_id=operation.tenant_id,
        operation=operation,
        verdict=says.verdict,
        provider_ref=says.provider_ref,
        sealed_words=sealed.seal_json(key, words_place(settlement_id), {"text": says.words}),
        by=person,
        channel=channel,
        closed_at=now() if is_closed else None,
        closed_as="settled" if is_closed else "",
    )


def _audit(operation: Operation, verb: str, settlement_id: UUID, says: Says, actor: Actor) -> None:
    record(
        operation.tenant_id,
        f"operation.{verb}",
        "operation",
        operation.public_id,
        actor,
        detail={
            "settlement": show("set", settlement_id),
            "verdict": says.verdict.value,
            "provider_ref": says.provider_ref,
            "words": says.words,
        },
    )


def _merge(locked: Locked, says: Says, settlement_id: UUID, actor: Actor, shown: Answer) -> None:
    """The word as a finding of its own, and what follows from it."""
    detail = f"Settled by a person ({show('set', settlement_id)})."

    def evidence(verdict: Verdict, **more: Any) -> Evidence:
        code = says.verdict.value.replace("-", "_")
        return Evidence(Source.PERSON, Answer(verdict, code=code, detail=detail, **more), actor=actor)

    match says.verdict:
        case _P.HAPPENED:
            merge(
                locked,
                evidence(Verdict.APPLIED, provider_ref=says.provider_ref, receipt=shown.receipt or {}),
            )
        case _P.DID_NOT:
            merge(locked, evidence(Verdict.REFUSED))
        case _P.SEND_AGAIN:
            note(locked.operation, evidence(Verdict.NOT_SENT))
            send_again(locked, actor)
            ring_operations()
        case _P.KEEP_LOOKING:
            note(locked.operation, evidence(Verdict.UNKNOWN))
            _look(locked, now() + timedelta(hours=says.look_hours), actor)
            ring_operations()


def _look(locked: Locked, until: datetime, actor: Actor) -> None:
    operation = locked.operation
    changes: dict[str, Any] = {"look_until": until, "next_attempt_at": now()}
    if operation.status == _S.ESCALATED:
        move(locked, _S.UNKNOWN, reason="keep_looking", actor=actor, **changes)
    else:
        Operation.objects.filter(pk=operation.pk).update(**changes)


def words(settlement: Settlement) -> str:
    text: str = vault.unseal(words_place(settlement.id), settlement.sealed_words)["text"]
    return text
