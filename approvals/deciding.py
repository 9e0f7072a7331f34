"""Decide: one person's answer to exactly the proposal that was shown."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone as zones

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.kernel.redaction import printable
from agentops.tenancy import vault
from agentops.tenancy.models import User
from operations.moves import Locked, lock, move, retried
from operations.services import digest_of
from operations.states import OperationStatus

from . import queries
from .asking import affordable
from .ending import close
from .models import Approval, Decision
from .rights import entitled, note_refusal
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
    seen_sheet_digest: str = "",
) -> Approval:
    """One person's answer to exactly the proposal that was shown.

    Raises NotFound; NotYours (no_right, own_request, over_limit); Invalid (reason_required); Conflict (already_decided,
    digest_mismatch, expired, run_ended).
    """
    approval = Approval.objects.filter(tenant_id=tenant_id, pk=approval_id).select_related("tenant").first()
    if approval is None:
        raise NotFound("There is no such approval.")
    reason = printable(reason.strip(), MAX_REASON_CHARS)
    answer = VerdictOfPerson(verdict)
    try:
        entitled(approval, reviewer, answer)
    except NotYours as refused:
        note_refusal(approval, reviewer, channel, refused.code)
        raise
    if answer == VerdictOfPerson.REJECT and not reason:
        raise Invalid(
            "A rejection needs a reason; the agent passes it on.",
            code="reason_required",
            errors=[{"pointer": "/reason", "detail": "Say why."}],
        )
    return _decide(approval, reviewer, answer, reason, proposal_digest, channel, seen_sheet_digest)


@retried
def _decide(
    shown: Approval,
    reviewer: User,
    answer: VerdictOfPerson,
    reason: str,
    digest: str,
    channel: str,
    seen_sheet_digest: str,
) -> Approval:
    locked = lock(shown.operation_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=shown.pk)
    if approval.status != _S.REQUESTED:
        raise already(approval)
    if locked.run.ending:
        raise Conflict("The run is being ended, so nothing is asked any more.", code="run_ended")
    if locked.operation.status != OperationStatus.PENDING:
        raise Conflict("The operation has been settled meanwhile; nothing is asked any more.", code="settled")
    if approval.expires_at is not None and approval.expires_at <= now():
        raise Conflict("Nobody decided in time; the proposal has expired.", code="expired")
    if digest != approval.proposal_digest or digest != digest_of(locked.operation):
        raise Conflict(
            "The proposal is not the one that you were shown. Read it again, then decide.",
            code="digest_mismatch",
            extra={"proposal_digest": approval.proposal_digest},
        )
    if approval.decisions.filter(reviewer=reviewer).exists():
        raise Conflict(
            "You have answered this proposal already; another person is needed.", code="already_answered"
        )
    actor = Actor(f"user:{reviewer.pk}", channel)
    _write_decision(approval, reviewer, answer, reason, channel, seen_sheet_digest)
    if answer == VerdictOfPerson.REJECT:
        close(locked, approval, _S.REJECTED, actor)
        move(
            locked,
            OperationStatus.REJECTED,
            reason="rejected",
            actor=actor,
            error_code="rejected",
            error_detail=reason,
        )
    elif approval.decisions.filter(verdict=VerdictOfPerson.APPROVE).count() >= approval.required:
        _approved(locked, approval, actor)
    return approval


def _write_decision(
    approval: Approval, reviewer: User, answer: VerdictOfPerson, reason: str, channel: str, seen: str
) -> None:
    decision = Decision(
        id=uuid7(),
        tenant_id=approval.tenant_id,
        approval=approval,
        reviewer=reviewer,
        verdict=answer,
        proposal_digest=approval.proposal_digest,
        seen_sheet_digest=seen,
        channel=channel,
    )
    key = vault.opened(approval.data_key_id)
    decision.sealed_reason = sealed.seal_json(key, queries.reason_place(decision), {"text": reason})
    decision.save(force_insert=True)
    record(
        approval.tenant_id,
        f"approval.{answer.value}",
        "approval",
        approval.public_id,
        Actor(f"user:{reviewer.pk}", channel),
        after={"digest": approval.proposal_digest},
        detail={"reason": reason, "operation": str(approval.operation_id)},
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


def already(approval: Approval) -> Conflict:
    """What the second of two reviewers is told: who decided what, and when."""
    last = approval.decisions.select_related("reviewer").order_by("-decided_at").first()
    extra: dict[str, Any] = {"approval_status": approval.status}
    words = f"This proposal is {approval.status} already."
    if last is not None:
        name = last.reviewer.get_full_name() or last.reviewer.username
        at = zones.localtime(last.decided_at).strftime("%H:%M:%S UTC on %d %B %Y")
        extra |= {"decided_by": name, "decided_at": last.decided_at.isoformat(), "verdict": last.verdict}
        words = f"{name} answered {last.verdict!r} at {at}."
    return Conflict(words, code="already_decided", extra=extra)
