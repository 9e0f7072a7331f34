"""The verbs on an approval: ask, decide, expire, withdraw; and the fresh look before anything is sent."""

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone as zones

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now, Once, now
from agentops.kernel.ids import uuid7
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.kernel.redaction import printable
from agentops.kernel.transitions import swap
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant, User
from operations.connectors.base import Fact, Facts
from operations.dispatch import Authority, Standing
from operations.models import Operation
from operations.moves import Locked, lock, move, retried
from operations.occurrences import AskAgain
from operations.services import digest_of, params, remaining_minor
from operations.states import OperationStatus
from runs.events import Event, append
from runs.models import AgentRun
from runs.services import approvals_left, requesters_of, wake
from runs.wakeups import approvals_changed

from . import queries
from .models import Approval, Decision
from .policy import Verdict, evaluate_again, remember
from .sentences import fact_sentence
from .states import ApprovalStatus, Outcome, VerdictOfPerson

MAX_REASON_CHARS = 2_000
_S = ApprovalStatus


def submit(locked: Locked, verdict: Verdict, facts: Facts, actor: Actor) -> Approval | None:
    """Let policy's verdict act on a freshly proposed operation: allowed, denied, or a question to people."""
    operation = locked.operation
    decision = remember(operation, verdict)
    if verdict.outcome == Outcome.DENY:
        sentence = (verdict.sentences or {}).get("en", "")
        move(
            locked,
            OperationStatus.REJECTED,
            reason=verdict.rule,
            error_code=verdict.rule,
            error_detail=sentence,
        )
        return None
    if operation.tenant.state != Tenant.State.ACTIVE:
        move(locked, OperationStatus.CANCELLED, reason="tenant_suspended", error_code="tenant_suspended")
        return None
    broken = facts.broken_guards()
    if broken:  # nobody is asked for what could not be sent anyway
        code = f"guard_broken:{broken[0].name}"[:60]
        move(
            locked,
            OperationStatus.REJECTED,
            reason=code,
            error_code=code,
            error_detail=_why_broken(broken[0], operation.currency),
        )
        return None
    if not _affordable(operation):
        _over_capacity(locked)
        return None
    if verdict.outcome == Outcome.ALLOW:
        move(
            locked,
            OperationStatus.APPROVED,
            reason=verdict.rule,
            authority_kind="policy",
            authority_id=decision.id,
            authorised_digest=digest_of(operation),
            next_attempt_at=now(),
        )
        return None
    return ask(locked, verdict, facts, decision_id=decision.id)


def _why_broken(fact: Fact, currency: str) -> str:
    assert fact.guard is not None
    guard = {"relation": fact.guard.relation, "bound": fact.guard.bound}
    said = {"name": fact.name, "value": fact.value, "source": fact.source, "guard": guard}
    return fact_sentence(said, currency=currency)


def _affordable(operation: Operation) -> bool:
    if operation.amount_minor is None:
        return True
    remaining = remaining_minor(operation.target, but=operation.id)
    return remaining is None or operation.amount_minor <= remaining


def _over_capacity(locked: Locked) -> None:
    remaining = remaining_minor(locked.operation.target, but=locked.operation.id)
    move(
        locked,
        OperationStatus.REJECTED,
        reason="over_remaining",
        error_code="over_remaining",
        error_detail=f"Only {remaining} in minor units can still be given back; the rest is refunded or promised.",
    )


def ask(locked: Locked, verdict: Verdict, facts: Facts, *, decision_id: UUID | None) -> Approval:
    """Open a question to people about a locked, pending operation."""
    operation, run = locked.operation, locked.run
    key = vault.opened(run.data_key_id)
    approval = Approval(
        id=uuid7(),
        tenant_id=operation.tenant_id,
        operation=operation,
        action=operation.action,
        amount_minor=operation.amount_minor,
        currency=operation.currency,
        risk=verdict.risk,
        data_key_id=run.data_key_id,
        proposal_digest=digest_of(operation),
        policy_decision_id=decision_id,
        requesters=[*requesters_of(run), *_reopeners(operation)],
        group=verdict.group,
        required=verdict.required,
        hold_seconds=verdict.hold_seconds,
        expires_at=now() + timedelta(hours=verdict.expires_hours),
    )
    approval.sealed_proposal = sealed.seal_json(
        key, queries.proposal_place(approval), _sheet(operation, verdict, facts)
    )
    approval.sealed_grounds = sealed.seal_json(
        key, queries.grounds_place(approval), _grounds(run, verdict, facts)
    )
    approval.save(force_insert=True)
    assert approval.expires_at is not None
    append(
        run,
        Event(
            "approval.requested",
            {
                "approval_id": approval.public_id,
                "operation_id": operation.public_id,
                "expires_at": approval.expires_at.isoformat(),
            },
        ),
    )
    record(
        approval.tenant_id,
        "approval.requested",
        "approval",
        approval.public_id,
        SYSTEM,
        after={"digest": approval.proposal_digest},
        detail={"operation": operation.public_id, "rule": verdict.rule},
    )
    approvals_changed(approval.tenant_id)
    return approval


def may_ask_again(verdict: Verdict, facts: Facts) -> AskAgain:
    """Whether people may be asked anew for what they rejected: on other facts than they saw, or after the cool-down."""

    def ask_again(rejected: Operation) -> bool:
        asked = Approval.objects.filter(operation=rejected, status=_S.REJECTED).order_by("-closed_at").first()
        if asked is None or asked.closed_at is None:
            return True  # no person said no: policy did, or a fact, and both are asked anew anyway
        if now() >= asked.closed_at + timedelta(hours=verdict.cool_down_hours):
            return True
        seen = {(fact["source"], fact["name"]): fact["value"] for fact in queries.grounds(asked)["facts"]}
        return seen != {(fact.source, fact.name): fact.value for fact in facts.facts}

    return ask_again


def _reopeners(operation: Operation) -> list[str]:
    """Who let the intent be proposed once more has asked for it as well."""
    previous = operation.previous
    return [previous.reopened_by] if previous is not None and previous.reopened_by else []


def _sheet(operation: Operation, verdict: Verdict, facts: Facts) -> dict[str, Any]:
    """What reviewers see, as codes and values; sentences are made on reading."""
    return {
        "action": operation.action,
        "action_version": operation.action_version,
        "target": operation.target_text,
        "connection": str(operation.connection_id),
        "params": params(operation),
        "fields": [
            {"name": field.name, "before": field.before, "after": field.after, "kind": field.kind}
            for field in facts.fields
        ],
        "amount_minor": operation.amount_minor,
        "currency": operation.currency,
        "reasons": [{"code": code, "sentence": dict(verdict.sentences or {})} for code in verdict.codes],
        "warnings": _warnings(operation, verdict),
        "risk": verdict.risk,
        "reference": operation.reference,
    }


def _warnings(operation: Operation, verdict: Verdict) -> list[dict[str, Any]]:
    """The same intent as it was asked for before, then what else there is on the target; each once."""
    previous = operation.previous
    others = [("asked_before", previous)] if previous is not None else []
    others += [("same_target", other) for other in verdict.same_target if other != previous]
    return [
        {
            "code": code,
            "operation_id": other.public_id,
            "action": other.action,
            "target": other.target_text,
            "amount_minor": other.amount_minor,
            "currency": other.currency,
            "status": other.status,
            "at": other.created_at.isoformat(),
        }
        for code, other in others
    ]


def _grounds(run: AgentRun, verdict: Verdict, facts: Facts) -> dict[str, Any]:
    at = now().isoformat()
    return {
        "facts": [
            {
                "name": fact.name,
                "value": fact.value,
                "source": fact.source,
                "at": at,
                "guard": {"relation": fact.guard.relation, "bound": fact.guard.bound} if fact.guard else None,
            }
            for fact in facts.facts
        ],
        "policy": {
            "number": verdict.policy.number if verdict.policy else None,
            "rule": verdict.rule,
            "outcome": verdict.outcome,
        },
        "release": str(run.release_id),
        "requested_by": requesters_of(run),
    }


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
        _entitled(approval, reviewer, answer)
    except NotYours as refused:
        _note_refusal(approval, reviewer, channel, refused.code)
        raise
    if answer == VerdictOfPerson.REJECT and not reason:
        raise Invalid(
            "A rejection needs a reason; the agent passes it on.",
            code="reason_required",
            errors=[{"pointer": "/reason", "detail": "Say why."}],
        )
    return _decide(approval, reviewer, answer, reason, proposal_digest, channel, seen_sheet_digest)


def _entitled(approval: Approval, reviewer: User, answer: VerdictOfPerson) -> None:
    if not reviewer.is_active or not reviewer.has_perm("tenancy.decide_approvals", approval.tenant):
        raise NotYours(f"You may not decide proposals of {approval.tenant}.", code="no_right")
    if f"user:{reviewer.pk}" in approval.requesters:
        raise NotYours("You asked for this yourself, so somebody else decides.", code="own_request")
    if answer == VerdictOfPerson.APPROVE and not queries.within_limit(reviewer, approval):
        able = ", ".join(
            person.get_full_name() or person.username for person in queries.who_can_approve(approval)
        )
        raise NotYours(
            f"This is above your limit. {able or 'Nobody with a high enough limit'} can approve it.",
            code="over_limit",
        )


def _note_refusal(approval: Approval, reviewer: User, channel: str, code: str) -> None:
    with transaction.atomic():
        record(
            approval.tenant_id,
            "approval.refused_reviewer",
            "approval",
            approval.public_id,
            Actor(f"user:{reviewer.pk}", channel),
            detail={"code": code},
            security=code == "no_right",
        )


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
        _close(locked, approval, _S.REJECTED, actor)
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
    if not _affordable(operation):
        raise Conflict(
            "Meanwhile less can be given back than this proposal asks for. Reject it, or wait for a new one.",
            code="over_remaining",
        )
    due = now() + timedelta(seconds=approval.hold_seconds)
    _close(locked, approval, _S.APPROVED, actor)
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


def _close(locked: Locked, approval: Approval, to: ApprovalStatus, actor: Actor) -> None:
    """Close an open approval and tell the runs that wait for it."""
    swap(approval, to, closed_at=Now())
    for run_id, run in locked.runs.items():
        if run.is_terminal:
            continue
        append(
            run,
            Event(
                "approval.decided",
                {
                    "approval_id": approval.public_id,
                    "operation_id": locked.operation.public_id,
                    "status": approval.status,
                    "by": actor.name,
                },
            ),
        )
        still_open = Approval.objects.filter(
            operation__interests__run_id=run_id, status=_S.REQUESTED
        ).exists()
        locked.runs[run_id] = approvals_left(run, still_open)
    approvals_changed(approval.tenant_id)


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


def expire_due(limit: int = 100) -> int:
    """Close what nobody decided in time, by the database's clock, and what evidence has settled meanwhile; how many."""
    asked = Approval.objects.filter(status=_S.REQUESTED)
    overdue = asked.filter(Q(expires_at__lte=Once()) | ~Q(operation__status=OperationStatus.PENDING))
    expired = 0
    for approval_id, operation_id in list(
        overdue.order_by("expires_at").values_list("id", "operation_id")[:limit]
    ):
        expired += _expire(approval_id, operation_id)
    return expired


@retried
def _expire(approval_id: UUID, operation_id: UUID) -> int:
    locked = lock(operation_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=approval_id)
    if approval.status != _S.REQUESTED:
        return 0
    if locked.operation.status != OperationStatus.PENDING:  # a late answer came: there is nothing left to ask
        _close(locked, approval, _S.WITHDRAWN, SYSTEM)
        record(approval.tenant_id, "approval.withdrawn", "approval", approval.public_id, SYSTEM)
        return 1
    if approval.expires_at is None or approval.expires_at > now():
        return 0
    _close(locked, approval, _S.EXPIRED, SYSTEM)
    record(approval.tenant_id, "approval.expired", "approval", approval.public_id, SYSTEM)
    move(locked, OperationStatus.EXPIRED, reason="expired", error_code="expired")
    return 1


def withdraw(locked: Locked, actor: Actor) -> None:
    """The run ends: nobody asks about this locked operation any more."""
    for approval in Approval.objects.select_for_update(no_key=True).filter(
        operation=locked.operation, status=_S.REQUESTED
    ):
        _close(locked, approval, _S.WITHDRAWN, actor)
        record(approval.tenant_id, "approval.withdrawn", "approval", approval.public_id, actor)


def _recheck(operation: Operation, facts: Facts) -> Standing:
    """FRESH-AUTHORITY: approvers still entitled, policy asks for no more, every guard holds."""
    verdict = evaluate_again(operation, facts)
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


AUTHORITY = Authority(recheck=_recheck, spend=_spend)
