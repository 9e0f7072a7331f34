"""Take a yes back before it is used, or give a question more time. The operation row is the arbiter of both."""

from dataclasses import replace
from uuid import UUID

from agentops.audit.entries import Actor, record
from agentops.kernel import redaction
from agentops.kernel.clock import Now, now
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.kernel.transitions import swap
from agentops.tenancy.models import User
from operations.connectors.base import Facts
from operations.connectors.registry import ACTIONS
from operations.models import Operation
from operations.moves import Locked, lock, move, retried
from operations.queries import receipt
from operations.states import OperationStatus
from runs.services import wake
from runs.wakeups import approvals_changed

from . import queries
from .asking import ask, people_decide
from .deciding import is_as_recorded, note_altered, open_question
from .ending import expire, finish
from .grounds import facts_as_asked
from .models import Approval
from .policy import Verdict, evaluate_again, remember
from .rights import may_decide, note_refusal, refusal, take_part, why_no_part
from .states import ApprovalStatus, Outcome, Risk

MAX_REASON_CHARS = 2_000
_S = ApprovalStatus


def find(tenant_id: int, approval_id: UUID) -> Approval:
    """Raises NotFound."""
    approval = Approval.objects.filter(tenant_id=tenant_id, pk=approval_id).select_related("tenant").first()
    if approval is None:
        raise NotFound("There is no such approval.")
    return approval


def revoke(tenant_id: int, approval_id: UUID, *, reviewer: User, reason: str, channel: str) -> Approval:
    """Take a yes back, whoever gave it, while nothing is on its way; people are asked anew, by the rules in force.

    Where the record was altered since, nobody is asked about that: the operation has failed then. Returns the approval that
    was taken back. Raises NotFound; NotYours (no_right); Invalid (reason_required); Conflict (not_approved, already_sent,
    run_ended).
    """
    approval = find(tenant_id, approval_id)
    if not may_decide(reviewer, approval.tenant):
        note_refusal(approval, reviewer, channel, "no_right")
        raise NotYours(refusal("no_right", approval), code="no_right")
    reason = redaction.reason(reason, MAX_REASON_CHARS)
    if not reason:
        raise Invalid("Say why it is taken back; it is kept.", code="reason_required")
    actor = Actor(f"user:{reviewer.pk}", channel)
    return _revoke(approval.id, approval.operation_id, _anew(approval), actor, reason)


def _anew(approval: Approval) -> tuple[Verdict, Facts] | None:
    """What people are asked with, once the yes is gone; None where a record is not what they had said yes to."""
    operation = Operation.objects.select_related("tenant", "run").get(pk=approval.operation_id)
    if not is_as_recorded(operation, approval) or not queries.opens(approval):
        return None
    facts = facts_as_asked(approval)
    return _in_force(approval, operation, facts), facts


def _in_force(approval: Approval, operation: Operation, facts: Facts) -> Verdict:
    """What the rules say now, on the facts as they were: no system is asked, so that this works whatever is down."""
    if operation.action in ACTIONS:
        return evaluate_again(operation, facts)
    hours = None
    if approval.expires_at is not None:
        hours = max(1, round((approval.expires_at - approval.requested_at).total_seconds() / 3600))
    verdict = Verdict(
        Outcome.REQUIRE_APPROVAL,
        "revoked",
        ("revoked",),
        risk=Risk(approval.risk),
        required=approval.required,
        group=approval.group,
        hold_seconds=approval.hold_seconds,
    )
    return replace(verdict, expires_hours=hours or 0)


@retried
def _revoke(
    approval_id: UUID, operation_id: UUID, anew: tuple[Verdict, Facts] | None, actor: Actor, reason: str
) -> Approval:
    locked = lock(operation_id)
    operation = locked.operation
    approval = Approval.objects.select_for_update(no_key=True).get(pk=approval_id)
    if not may_decide(User.objects.get(pk=int(actor.name.removeprefix("user:"))), operation.tenant):
        raise NotYours(refusal("no_right", approval), code="no_right")
    if approval.status != _S.APPROVED:
        raise Conflict(
            f"{approval} is {approval.status}; there is no yes to take back.",
            code="not_approved",
            extra={"approval_status": approval.status},
        )
    if operation.status != OperationStatus.APPROVED or operation.authority_id != approval.id:
        raise already_sent(approval, operation)
    if locked.run.ending:
        raise Conflict("The run is being ended; nothing of it is sent.", code="run_ended")
    finish(locked, approval, _S.REVOKED, actor, reason="revoked")
    record(
        approval.tenant_id,
        "approval.revoked",
        "approval",
        approval.public_id,
        actor,
        before={"digest": approval.proposal_digest},
        detail={"reason": reason, "operation": operation.public_id},
    )
    if operation.in_doubt:  # it was to be sent once more: what an earlier try did must still be found out
        move(locked, OperationStatus.UNKNOWN, reason="revoked", actor=actor, next_attempt_at=now())
    elif anew is None or not is_as_recorded(operation, approval):
        note_altered(approval, actor)
        code, said = "record_altered", "The record is not the one that was allowed."
        move(locked, OperationStatus.FAILED, reason=code, actor=actor, error_code=code, error_detail=said)
    else:
        _back_to_people(locked, approval, *anew, actor)
    return approval


def _back_to_people(locked: Locked, approval: Approval, verdict: Verdict, facts: Facts, actor: Actor) -> None:
    operation = locked.operation
    if verdict.outcome == Outcome.DENY:
        sentence = (verdict.sentences or {}).get("en", "")
        code = verdict.rule
        move(
            locked, OperationStatus.REJECTED, reason=code, actor=actor, error_code=code, error_detail=sentence
        )
        return
    cleared = {"dispatch_after": None, "next_attempt_at": None}
    move(locked, OperationStatus.PENDING, reason="revoked", actor=actor, **cleared)
    decision = remember(operation, verdict)
    ask(
        locked,
        people_decide(verdict, "revoked"),
        facts,
        decision_id=decision.id,
        before=approval,
        why="revoked",
        round=approval.round,
    )
    for run_id in locked.runs:
        wake(run_id, "approval", {"operation_id": operation.public_id})


def already_sent(approval: Approval, operation: Operation) -> Conflict:
    """Too late: it is on its way or done; with the receipt, where there is one."""
    extra = {
        "approval_status": approval.status,
        "operation_status": operation.status,
        "provider_ref": operation.provider_ref,
        "receipt": receipt(operation),
    }
    if operation.is_final and not operation.attempts:
        words = f"{operation} is {operation.status}; nothing of it was sent."
        return Conflict(words, code="nothing_to_revoke", extra=extra)
    what = f"; the receipt is {operation.provider_ref}" if operation.provider_ref else ""
    words = f"It is already sent: {operation} is {operation.status}{what}. What is done can only be undone by another operation."
    return Conflict(words, code="already_sent", extra=extra)


def extend(tenant_id: int, approval_id: UUID, *, reviewer: User, channel: str) -> Approval:
    """Give an open question as much time again as it had, once.

    Raises NotFound; NotYours (no_right, own_request); Conflict (already_decided, expired, already_extended, never_expires,
    run_ended, settled).
    """
    approval = find(tenant_id, approval_id)
    if code := why_no_part(reviewer, approval):
        note_refusal(approval, reviewer, channel, code)
        raise NotYours(refusal(code, approval), code=code)
    try:
        return _extend(approval.id, approval.operation_id, Actor(f"user:{reviewer.pk}", channel))
    except Conflict as refused:
        if refused.code == "expired":
            expire(approval.id, approval.operation_id)
        raise


@retried
def _extend(approval_id: UUID, operation_id: UUID, actor: Actor) -> Approval:
    locked = lock(operation_id)
    approval = open_question(locked, approval_id)
    take_part(actor, approval, requesters=locked.askers)
    if approval.expires_at is None:
        raise Conflict("It waits without an end; there is nothing to extend.", code="never_expires")
    if approval.extended_at is not None:
        raise Conflict(
            f"{queries.name_of(approval.extended_by)} has extended it already.", code="already_extended"
        )
    before = approval.expires_at
    after = before + (before - approval.requested_at)
    swap(
        approval,
        _S.REQUESTED,
        expires_at=after,
        extended_at=Now(),
        extended_by=actor.name,
        notify_at=now(),  # its reminder moves with it
    )
    told = {"before": before.isoformat(), "after": after.isoformat()}
    record(approval.tenant_id, "approval.extended", "approval", approval.public_id, actor, detail=told)
    approvals_changed(approval.tenant_id)
    return approval
