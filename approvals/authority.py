"""FRESH-AUTHORITY: a stored yes is evidence, not permission; before anything is sent everything is looked at again."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now, now
from agentops.tenancy import vault
from agentops.tenancy.models import User
from operations.connectors.base import Facts
from operations.dispatch import Authority, Standing
from operations.models import Operation
from operations.moves import Locked, askers_of, move
from operations.rewriting import Rewritten, rewrite
from operations.states import OperationStatus
from runs.services import wake

from . import limits, queries, rights
from .asking import ask, people_decide
from .deciding import has_its_terms
from .ending import finish, withdraw
from .grounds import Change, moved_since
from .models import Approval, Decision
from .policy import Verdict, evaluate_for_dispatch, remember
from .states import ApprovalStatus, Outcome, VerdictOfPerson

_S = ApprovalStatus
MAX_ROUNDS = (
    2  # so often people are asked anew because something broke; the next time a person must reopen it
)


def _recheck(operation: Operation, facts: Facts, anew: Rewritten | None = None) -> Standing:
    """Whether it may be sent now: rights stand, policy asks for no more than was given, every guard holds.

    `anew`: how it would be sent by this release, where that is another version of its action.
    """
    approval = _approval_of(operation)
    if approval is not None and (misuse := _misused(operation, approval)):
        return _refused(operation, approval, misuse)
    verdict = evaluate_for_dispatch(operation, facts)
    end = partial(void, approval_id=approval.id if approval else None)
    if verdict.outcome == Outcome.DENY:
        sentence = (verdict.sentences or {}).get("en", "")
        return Standing(OperationStatus.REJECTED, verdict.rule, sentence, partial(end, code=verdict.rule))
    then = queries.grounds(approval)["rights"] if approval else None
    if rights.lost_by_requester(operation.run, then):
        said = "Who asked for this may no longer ask for it."
        code = "requester_lost_right"
        return Standing(OperationStatus.REJECTED, code, said, partial(end, code=code))
    lapsed = _lapsed(operation, approval, verdict, facts, anew)
    if not lapsed:
        moved = moved_since(approval, operation, facts, verdict) if approval else []
        return Standing(moved=moved)
    round = (operation.approvals.aggregate(most=Max("round"))["most"] or 0) + _counts(lapsed)
    if round > MAX_ROUNDS:
        said = f"What it rests on changed {MAX_ROUNDS + 1} times before it could be sent. A person must reopen it."
        code = "asked_too_often"
        return Standing(OperationStatus.REJECTED, code, said, partial(end, code=lapsed))
    then_ask = partial(
        _ask_again, verdict=verdict, facts=facts, code=lapsed, round=round, before=approval, anew=anew
    )
    return Standing(OperationStatus.PENDING, lapsed, "", then_ask)


def _counts(code: str) -> bool:
    """Time that ran out, and a yes that a person took back, are no sign that the ground shifts."""
    return not code.startswith("approval_") and code != "action_changed"


def _approval_of(operation: Operation) -> Approval | None:
    if operation.authority_kind != "approval" or operation.authority_id is None:
        return None
    return Approval.objects.select_related("tenant").filter(pk=operation.authority_id).first()


def _misused(operation: Operation, approval: Approval) -> str:
    """Whether the yes was given to something else, was used up by it, or never given: no service writes that."""
    if approval.operation_id != operation.id:
        return "approval_spent" if approval.consumed_at else "approval_of_another"
    if approval.proposal_digest != operation.authorised_digest or not has_its_terms(operation, approval):
        return "approval_altered"
    if approval.status != _S.APPROVED:
        return ""  # it lapsed, and says how
    given = approval.decisions.filter(
        verdict=VerdictOfPerson.APPROVE, proposal_digest=approval.proposal_digest
    )
    return "approval_unanswered" if given.count() < approval.required else ""


def _refused(operation: Operation, approval: Approval, code: str) -> Standing:
    with transaction.atomic():
        record(
            operation.tenant_id,
            "approval.misused",
            "approval",
            approval.public_id,
            SYSTEM,
            detail={"code": code, "operation": operation.public_id},
            security=True,
        )
    said = "What allowed it was given to something else."
    if code == "approval_unanswered":
        said = "Fewer people said yes to it than were asked."
    return Standing(OperationStatus.FAILED, code, said)


def _lapsed(
    operation: Operation,
    approval: Approval | None,
    verdict: Verdict,
    facts: Facts,
    anew: Rewritten | None,
) -> str:
    """Why what allowed it is no permission any more; empty where it still is."""
    if approval is not None and (code := _no_longer_given(operation, approval, verdict)):
        return code
    if broken := facts.broken_guards():
        return f"guard_broken:{broken[0].name}"[:60]
    if anew is not None:
        return "action_changed"
    return verdict.rule if approval is None and verdict.outcome != Outcome.ALLOW else ""


def _no_longer_given(operation: Operation, approval: Approval, verdict: Verdict) -> str:
    if approval.status != _S.APPROVED:
        return f"approval_{approval.status}"
    if approval.expires_at is not None and approval.expires_at <= now():
        return "approval_expired"
    if verdict.asks_more_than(Outcome.REQUIRE_APPROVAL, approval.required, approval.group):
        return "policy_asks_more"
    requesters = askers_of(operation)  # whoever came to the same intent since has asked as well
    for decision in approval.decisions.filter(verdict=VerdictOfPerson.APPROVE).order_by("id"):
        person = User.objects.get(pk=decision.reviewer_id)  # with no cached permissions
        match rights.why_no_part(person, approval, requesters=requesters):
            case "no_right":
                return "approver_lost_right"
            case "own_request":
                return "approver_asked_for_it"
        if code := _beyond(person, approval, decision):
            return code
    return ""


def _beyond(person: User, approval: Approval, decision: Decision) -> str:
    groups = limits.groups_of(person, approval.tenant)
    if not rights.is_in_group(approval, groups):
        return "approver_left_group"
    kept = limits.applying(person, approval, groups)
    return "approver_limit_lowered" if limits.exceeded(approval, kept, at=decision.decided_at) else ""


def void(locked: Locked, *, approval_id: UUID | None, code: str, to: ApprovalStatus = _S.REVOKED) -> None:
    """What allowed a locked operation allows nothing any more: `to` says whether a newer question follows."""
    if approval_id is None:
        return
    approval = Approval.objects.select_for_update(no_key=True).filter(pk=approval_id).first()
    if approval is not None and approval.status == _S.APPROVED:
        finish(locked, approval, to, SYSTEM, reason=code)
        verb, public_id = f"approval.{to.value}", approval.public_id
        record(approval.tenant_id, verb, "approval", public_id, SYSTEM, detail={"code": code})


def _ask_again(
    locked: Locked,
    *,
    verdict: Verdict,
    facts: Facts,
    code: str,
    round: int,
    before: Approval | None,
    anew: Rewritten | None,
) -> None:
    """The authority lapsed before anything was sent: the old approval is superseded, people are asked anew."""
    void(locked, approval_id=before.id if before else None, code=code, to=_S.SUPERSEDED)
    if anew is not None:
        rewrite(locked, anew, SYSTEM, reason="action_changed")
    decision = remember(locked.operation, verdict)
    if anew is not None and before is None and verdict.outcome == Outcome.ALLOW:
        move(
            locked,
            OperationStatus.APPROVED,
            reason=verdict.rule,
            authority_kind="policy",
            authority_id=decision.id,
            authorised_digest=anew.digest_of(locked.operation),
            next_attempt_at=now(),
        )
        return
    ask(
        locked,
        people_decide(verdict, code),
        facts,
        decision_id=decision.id,
        before=before or _last_of(locked.operation),
        why=code,
        round=round,
    )
    for run_id in locked.runs:
        wake(run_id, "approval", {"operation_id": locked.operation.public_id})


def _last_of(operation: Operation) -> Approval | None:
    return operation.approvals.order_by("-id").first()


def _spend(operation: Operation, moved: Sequence[Change]) -> bool:
    """Mark the approval as used by this locked operation, once; further tries of it do not use it again.

    False where the approval has lapsed since it was looked at: the next dispatch will find that, and ask again.
    """
    if operation.authority_kind != "approval" or operation.authority_id is None:
        return True
    approval = Approval.objects.select_for_update(no_key=True).get(pk=operation.authority_id)
    if approval.status != _S.APPROVED or (approval.expires_at is not None and approval.expires_at <= now()):
        return False
    changes: dict[str, Any] = {}
    if moved:
        key = vault.opened(approval.data_key_id)
        place = queries.moved_place(approval)
        changes["sealed_moved"] = sealed.seal_json(key, place, {"moved": list(moved)})
        record(
            approval.tenant_id,
            "approval.grounds_moved",
            "approval",
            approval.public_id,
            SYSTEM,
            detail={"moved": list(moved)},
        )
    if approval.consumed_at is None:
        changes |= {"consumed_at": Now(), "consumed_by": operation.id}
    if changes:
        Approval.objects.filter(pk=approval.pk).update(**changes)
    return True


def _withdraw(locked: Locked, actor: Actor, code: str) -> None:
    """Nobody asks about a locked operation any more, and a yes that was not used allows nothing."""
    withdraw(locked, actor, code)
    if locked.operation.authority_kind == "approval":
        void(locked, approval_id=locked.operation.authority_id, code=code)


AUTHORITY = Authority(recheck=_recheck, spend=_spend, withdraw=_withdraw)
