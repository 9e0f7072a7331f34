"""Decide: one person's answer to exactly the proposal that was shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone as zones

from agentops.audit.entries import Actor, record
from agentops.kernel import redaction, sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import show, uuid7
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from agentops.tenancy.models import User
from operations.models import Operation
from operations.moves import Locked, lock, move, retried
from operations.services import digest_of
from operations.states import OperationStatus
from runs.wakeups import ring_operations

from . import limits, queries
from .asking import affordable
from .ending import close, expire
from .models import Approval, Decision
from .rights import entitled, note_refusal
from .seen import Seen, keep
from .states import ApprovalStatus, VerdictOfPerson

MAX_REASON_CHARS = 2_000
_S = ApprovalStatus


def decide(
    tenant_id: int,
    approval_id: UUID,
    *,
    reviewer: User,
    verdict: str,
    reason: str,
    proposal_digest: str,
    channel: str,
    seen: Seen | None = None,
) -> Approval:
    """One person's answer to exactly the proposal that was shown.

    Raises NotFound; NotYours (see `rights.entitled`); Invalid (reason_required); Conflict (already_decided,
    already_answered, digest_mismatch, sheet_differs, record_altered, erased, expired, over_remaining, run_ended,
    settled).
    """
    approval = Approval.objects.filter(tenant_id=tenant_id, pk=approval_id).select_related("tenant").first()
    if approval is None:
        raise NotFound("There is no such approval.")
    reason = redaction.reason(reason, MAX_REASON_CHARS)
    answer = VerdictOfPerson(verdict)
    given = _Answer(reviewer.pk, answer, reason, proposal_digest, channel, seen)
    try:
        # Before any lock; under them once more. What has ended is told to whoever may decide at all.
        is_open = approval.status == _S.REQUESTED
        entitled(approval, reviewer, answer if is_open else VerdictOfPerson.REJECT)
        if answer == VerdictOfPerson.REJECT and not reason:
            raise Invalid(
                "A rejection needs a reason; the agent passes it on.",
                code="reason_required",
                errors=[{"pointer": "/reason", "detail": "Say why."}],
            )
        return _decide(approval, given)
    except NotYours as refused:
        note_refusal(approval, reviewer, channel, refused.code)
        raise
    except Conflict as refused:
        match refused.code:
            case "expired":
                expire(approval.id, approval.operation_id)
            case "record_altered":
                note_altered(approval, Actor(f"user:{reviewer.pk}", channel))
        raise
    except CannotUnseal as shut:  # neither a reason nor an event of it can be kept
        said = f"The words of {approval} have been erased: no answer to it can be kept, and it is not sent."
        raise Conflict(said, code="erased") from shut


@dataclass(frozen=True)
class _Answer:
    reviewer_id: int
    verdict: VerdictOfPerson
    reason: str
    proposal_digest: str
    channel: str
    seen: Seen | None

    @property
    def actor(self) -> Actor:
        return Actor(f"user:{self.reviewer_id}", self.channel)


@retried
def _decide(shown: Approval, given: _Answer) -> Approval:
    locked = lock(shown.operation_id)
    approval = open_question(locked, shown.pk)
    if given.proposal_digest != approval.proposal_digest:
        raise Conflict(
            "The proposal is not the one that you were shown. Read it again, then decide.",
            code="digest_mismatch",
            extra={"proposal_digest": approval.proposal_digest},
        )
    if given.seen is not None and not given.seen.is_as_read:
        raise Conflict(
            "The page reads otherwise now than when you opened it. Read it again, then decide.",
            code="sheet_differs",
        )
    reviewer = User.objects.get(pk=given.reviewer_id)  # with no cached permissions
    if given.verdict == VerdictOfPerson.REJECT:
        entitled(approval, reviewer, given.verdict, requesters=locked.askers)
        _write_decision(approval, reviewer, given)
        close(locked, approval, _S.REJECTED, given.actor, reason="rejected")
        move(
            locked,
            OperationStatus.REJECTED,
            reason="rejected",
            actor=given.actor,
            error_code="rejected",
            error_detail=given.reason,
        )
        return approval
    if not is_as_recorded(locked.operation, approval) or not queries.opens(approval):
        raise Conflict("The record of this operation was altered; it is not sent.", code="record_altered")
    groups = limits.groups_of(reviewer, approval.tenant)
    kept = limits.locked(limits.applying(reviewer, approval, groups))  # the last of all locks
    entitled(approval, reviewer, given.verdict, requesters=locked.askers)
    _write_decision(approval, reviewer, given, groups=groups, limit_minor=limits.each_minor(kept))
    if approval.decisions.filter(verdict=VerdictOfPerson.APPROVE).count() >= approval.required:
        _approved(locked, approval, given.actor)
    return approval


def open_question(locked: Locked, approval_id: UUID) -> Approval:
    """The approval, locked after its operation, if it may still be answered. Raises Conflict."""
    approval = Approval.objects.select_for_update(no_key=True).get(pk=approval_id)
    approval.tenant = locked.operation.tenant
    if approval.status != _S.REQUESTED:
        raise already(approval, locked.operation)
    if locked.run.ending:
        raise Conflict("The run is being ended, so nothing is asked any more.", code="run_ended")
    if locked.operation.status != OperationStatus.PENDING:
        raise Conflict("The operation has been settled meanwhile; nothing is asked any more.", code="settled")
    if approval.expires_at is not None and approval.expires_at <= now():
        raise Conflict("Nobody decided in time; the proposal has expired.", code="expired")
    return approval


def is_as_recorded(operation: Operation, approval: Approval) -> bool:
    """Whether the stored rows still are what was shown; what cannot be opened is not."""
    try:
        return has_its_terms(operation, approval) and digest_of(operation) == approval.proposal_digest
    except CannotUnseal:
        return False


def has_its_terms(operation: Operation, approval: Approval) -> bool:
    """Whether limits are kept by what is sent: no digest covers what the approval's own row says of it."""
    said = (approval.action, approval.amount_minor, approval.currency)
    return said == (operation.action, operation.amount_minor, operation.currency)


def note_altered(approval: Approval, actor: Actor) -> None:
    with transaction.atomic():
        record(
            approval.tenant_id,
            "operation.tampered",
            "operation",
            show("op", approval.operation_id),
            actor,
            detail={"approval": approval.public_id, "digest": approval.proposal_digest},
            security=True,
        )


def _write_decision(
    approval: Approval,
    reviewer: User,
    given: _Answer,
    *,
    groups: Sequence[str] = (),
    limit_minor: int | None = None,
) -> None:
    """The answer, with the right that it was given by: the groups and the limit of that moment."""
    decision = Decision(
        id=uuid7(),
        tenant_id=approval.tenant_id,
        approval=approval,
        reviewer=reviewer,
        verdict=given.verdict,
        proposal_digest=approval.proposal_digest,
        groups=list(groups),
        limit_minor=limit_minor if approval.amount_minor is not None else None,
        channel=given.channel,
    )
    key = vault.opened(approval.data_key_id)
    decision.sealed_reason = sealed.seal_json(key, queries.reason_place(decision), {"text": given.reason})
    if given.seen is not None:
        keep(decision, given.seen, key)
    decision.save(force_insert=True)
    record(
        approval.tenant_id,
        f"approval.{given.verdict.value}",
        "approval",
        approval.public_id,
        given.actor,
        after={"digest": approval.proposal_digest},
        detail={"reason": given.reason, "operation": str(approval.operation_id)},
    )


def _approved(locked: Locked, approval: Approval, actor: Actor) -> None:
    """Enough people said yes. The money is promised under the target's lock; sending waits for the hold."""
    operation = locked.operation
    if not affordable(operation):
        raise Conflict(
            "Meanwhile less can be given back than this proposal asks for. Reject it, or wait for a new one.",
            code="over_remaining",
        )
    due = now() + timedelta(seconds=approval.hold_seconds)
    close(locked, approval, _S.APPROVED, actor)
    move(
        locked,
        OperationStatus.APPROVED,
        reason="approved",
        actor=actor,
        authority_kind="approval",
        authority_id=approval.id,
        authorised_digest=approval.proposal_digest,
        dispatch_after=due,
        next_attempt_at=due,
    )
    if not approval.hold_seconds:
        ring_operations()


def already(approval: Approval, operation: Operation) -> Conflict:
    """What whoever comes too late is told: how it ended, who decided what and when, and the receipt if it was sent."""
    last = approval.decisions.select_related("reviewer").order_by("-decided_at").first()
    extra: dict[str, Any] = {
        "approval_status": approval.status,
        "operation_status": operation.status,
        **({"provider_ref": operation.provider_ref} if operation.provider_ref else {}),
    }
    words = f"This proposal is {approval.status} already."
    if last is not None:
        name = last.reviewer.get_full_name() or last.reviewer.username
        at = zones.localtime(last.decided_at).strftime("%H:%M:%S UTC on %d %B %Y")
        extra |= {"decided_by": name, "decided_at": last.decided_at.isoformat(), "verdict": last.verdict}
        words = f"{name} answered {last.verdict!r} at {at}."
    if approval.consumed_at is not None:
        words += f" It was carried out: {operation} is {operation.status}."
        words += f" The receipt is {operation.provider_ref}." if operation.provider_ref else ""
    return Conflict(words, code="already_decided", extra=extra)
