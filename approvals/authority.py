"""FRESH-AUTHORITY: a stored yes is evidence, not permission; before anything is sent everything is looked at again."""

from functools import partial
from uuid import UUID

from agentops.kernel.clock import Now, now
from agentops.kernel.transitions import swap
from agentops.tenancy.models import User
from operations.connectors.base import Facts
from operations.dispatch import Authority, Standing
from operations.models import Operation
from operations.moves import Locked
from operations.states import OperationStatus
from runs.services import wake

from . import queries
from .asking import ask
from .ending import withdraw
from .models import Approval
from .policy import Verdict, evaluate_for_dispatch, remember
from .states import ApprovalStatus, Outcome, VerdictOfPerson

_S = ApprovalStatus


def _recheck(operation: Operation, facts: Facts) -> Standing:
    """FRESH-AUTHORITY: approvers still entitled, policy asks for no more, every guard holds."""
    verdict = evaluate_for_dispatch(operation, facts)
    if verdict.outcome == Outcome.DENY:
        return Standing(OperationStatus.REJECTED, verdict.rule, (verdict.sentences or {}).get("en", ""))
    ask_again = partial(_ask_again, verdict=verdict, facts=facts)
    broken = facts.broken_guards()
    if operation.authority_kind != "approval" or operation.authority_id is None:
        if broken:
            return Standing(OperationStatus.PENDING, f"guard_broken:{broken[0].name}"[:60], "", ask_again)
        if verdict.outcome == Outcome.REQUIRE_APPROVAL:
            return Standing(OperationStatus.PENDING, verdict.rule, "", ask_again)
        return Standing()
    approval = Approval.objects.select_related("tenant").get(pk=operation.authority_id)
    lapsed = _lapsed(approval, verdict) or (f"guard_broken:{broken[0].name}" if broken else "")
    if lapsed:
        return Standing(OperationStatus.PENDING, lapsed[:60], "", partial(ask_again, lapsed=approval.id))
    return Standing()


def _lapsed(approval: Approval, verdict: Verdict) -> str:
    """Why a stored approval is no permission any more; empty where it still is."""
    if approval.status != _S.APPROVED:
        return f"approval_{approval.status}"
    if approval.expires_at is not None and approval.expires_at <= now():
        return "approval_expired"
    if verdict.asks_more_than(Outcome.REQUIRE_APPROVAL, approval.required, approval.group):
        return "policy_asks_more"
    for decision in approval.decisions.filter(verdict=VerdictOfPerson.APPROVE).select_related("reviewer"):
        person = User.objects.get(pk=decision.reviewer_id)  # with no cached permissions
        if not person.is_active or not person.has_perm("tenancy.decide_approvals", approval.tenant):
            return "approver_lost_right"
        if not queries.within_limit(person, approval):
            return "approver_limit_lowered"
    return ""


def _ask_again(locked: Locked, *, verdict: Verdict, facts: Facts, lapsed: UUID | None = None) -> None:
    """The authority lapsed before anything was sent: the old approval is superseded, people are asked anew."""
    if lapsed is not None:
        old = Approval.objects.select_for_update(no_key=True).get(pk=lapsed)
        if old.status == _S.APPROVED and old.consumed_at is None:
            swap(old, _S.SUPERSEDED, closed_at=Now())
    decision = remember(locked.operation, verdict)
    ask(locked, verdict, facts, decision_id=decision.id)
    for run_id in locked.runs:
        wake(run_id, "approval", {"operation_id": locked.operation.public_id})


def _spend(operation: Operation) -> bool:
    """Mark the approval as used by this locked operation, once; further tries of it do not use it again.

    False where the approval has lapsed since it was looked at: the next dispatch will find that, and ask again.
    """
    if operation.authority_kind != "approval" or operation.authority_id is None:
        return True
    approval = Approval.objects.select_for_update(no_key=True).get(pk=operation.authority_id)
    if approval.status != _S.APPROVED or (approval.expires_at is not None and approval.expires_at <= now()):
        return False
    if approval.consumed_at is None:
        Approval.objects.filter(pk=approval.pk).update(consumed_at=Now(), consumed_by=operation.id)
    return True


AUTHORITY = Authority(recheck=_recheck, spend=_spend, withdraw=withdraw)
