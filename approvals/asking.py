"""Ask: policy's verdict acts on a fresh proposal, and where it must, people are asked."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from agentops.audit.entries import SYSTEM, Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant
from operations.connectors.base import Fact, Facts
from operations.models import Operation
from operations.moves import Locked, move
from operations.occurrences import AskAgain
from operations.services import digest_of, params
from operations.states import OperationStatus
from operations.targets import remaining_minor
from runs.events import Event, append
from runs.models import AgentRun
from runs.services import requesters_of
from runs.wakeups import approvals_changed

from . import queries
from .escalation import next_group
from .grounds import difference, grounds_of
from .models import Approval
from .policy import Verdict, counted_under_lock, remember
from .sentences import fact_sentence
from .states import ApprovalStatus, Outcome

_S = ApprovalStatus
NEEDS_A_PERSON = (
    "asked_too_often",
)  # rejected so, an intent is proposed again only after a person has reopened it


def submit(
    locked: Locked, verdict: Verdict, facts: Facts, actor: Actor, *, instead: Approval | None = None
) -> Approval | None:
    """Let policy's verdict act on a freshly proposed operation: allowed, denied, or a question to people.

    `instead`: the question about something else that this takes the place of; then people decide what rules would allow.
    """
    operation = locked.operation
    verdict = counted_under_lock(operation, verdict)
    if instead is not None:
        verdict = people_decide(verdict, "proposal_differs")
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
    if not affordable(operation):
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
    why = "proposal_differs" if instead is not None else ""
    return ask(locked, verdict, facts, decision_id=decision.id, before=instead, why=why)


def people_decide(verdict: Verdict, code: str) -> Verdict:
    """The same question where rules alone would let it pass: something happened that a person looks at."""
    if verdict.outcome != Outcome.ALLOW:
        return verdict
    return replace(verdict, outcome=Outcome.REQUIRE_APPROVAL, codes=(*verdict.codes, code))


def _why_broken(fact: Fact, currency: str) -> str:
    assert fact.guard is not None
    guard = {"relation": fact.guard.relation, "bound": fact.guard.bound}
    said = {"name": fact.name, "value": fact.value, "source": fact.source, "guard": guard}
    return fact_sentence(said, currency=currency)


def affordable(operation: Operation) -> bool:
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


def ask(
    locked: Locked,
    verdict: Verdict,
    facts: Facts,
    *,
    decision_id: UUID | None,
    before: Approval | None = None,
    why: str = "",
    round: int = 0,
) -> Approval:
    """Open a question to people about a locked, pending operation; `before` is the one that it follows, and `why`."""
    operation, run = locked.operation, locked.run
    key = vault.opened(run.data_key_id)
    at = now()
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
        escalate_to=next_group(verdict.group),
        required=verdict.required,
        hold_seconds=verdict.hold_seconds,
        expires_at=at + timedelta(hours=verdict.expires_hours) if verdict.expires_hours else None,
        round=round,
        notify_at=at,
    )
    sheet, rests_on = _sheet(operation, verdict, facts), grounds_of(run, operation, verdict, facts)
    approval.sealed_grounds = sealed.seal_json(key, queries.grounds_place(approval), rests_on)
    approval.sealed_proposal = sealed.seal_json(key, queries.proposal_place(approval), sheet)
    if before is not None:
        sheet["moved"] = {"since": before.public_id, "why": why, "changes": difference(before, approval)}
        approval.sealed_proposal = sealed.seal_json(key, queries.proposal_place(approval), sheet)
    approval.save(force_insert=True)
    _tell(run, approval, operation)
    record(
        approval.tenant_id,
        "approval.requested",
        "approval",
        approval.public_id,
        SYSTEM,
        after={"digest": approval.proposal_digest},
        detail={"operation": operation.public_id, "rule": verdict.rule, "why": why},
    )
    approvals_changed(approval.tenant_id)
    return approval


def _tell(run: AgentRun, approval: Approval, operation: Operation) -> None:
    ids = {"approval_id": approval.public_id, "operation_id": operation.public_id}
    expires_at = approval.expires_at.isoformat() if approval.expires_at else None
    append(run, Event("approval.requested", {**ids, "expires_at": expires_at}))


def may_ask_again(verdict: Verdict, facts: Facts) -> AskAgain:
    """Whether people may be asked anew for what they rejected: on other facts than they saw, or after the cool-down."""

    def ask_again(rejected: Operation) -> bool:
        if rejected.error_code in NEEDS_A_PERSON:
            return False
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
        "reasons": [
            {"code": code, "params": dict(verdict.params), "sentence": dict(verdict.sentences or {})}
            for code in verdict.codes
        ],
        "warnings": _warnings(operation, verdict),
        "risk": verdict.risk,
        "reference": operation.reference,
    }


def _warnings(operation: Operation, verdict: Verdict) -> list[dict[str, Any]]:
    """The same intent as it was asked for before, then what else there is on the target; each once."""
    previous = operation.previous
    others = [("asked_before", previous)] if previous is not None else []
    others += [("same_target", other) for other in verdict.same_target if other != previous]
    lowered = [{"code": "lowered", "currency": operation.currency, **each} for each in operation.lowered]
    return lowered + [
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
