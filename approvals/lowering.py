"""Lower before approving: the same operation for less, asked as a new proposal; whoever lowers it has not asked for it."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agentops.audit.entries import Actor, record
from agentops.kernel import redaction
from agentops.kernel.problems import Conflict, Invalid, NotYours
from agentops.tenancy.models import User
from operations.connectors.base import CheckFailed, Facts
from operations.connectors.registry import ACTIONS, CONNECTORS
from operations.dispatch import call_of, loaded
from operations.models import Operation
from operations.moves import lock, move, retried
from operations.rewriting import Rewritten, rewrite, rewritten
from operations.services import params
from operations.states import OperationStatus
from operations.targets import remember_facts

from . import queries
from .asking import ask, people_decide
from .deciding import MAX_REASON_CHARS, already, is_as_recorded, note_altered, open_question
from .ending import close, expire, finish
from .models import Approval
from .policy import Verdict, evaluate_again, remember
from .revoking import find
from .rights import note_refusal, refusal, take_part, why_no_part
from .states import ApprovalStatus, Outcome


def lower(
    tenant_id: int,
    approval_id: UUID,
    *,
    reviewer: User,
    changes: Mapping[str, int],
    reason: str,
    proposal_digest: str,
    channel: str,
) -> Approval | None:
    """The approval that asks about less, or None where a rule denies that. `changes`: adjustable parameter -> new value.

    Raises NotFound; NotYours (no_right, own_request); Invalid (reason_required, not_adjustable, not_lower, invalid_params,
    no_action); Conflict (those of `decide`, already_tried, guard_broken, and what the system that owns the facts says).
    """
    approval = find(tenant_id, approval_id)
    actor = Actor(f"user:{reviewer.pk}", channel)
    if code := why_no_part(reviewer, approval):
        note_refusal(approval, reviewer, channel, code)
        raise NotYours(refusal(code, approval), code=code)
    reason = redaction.reason(reason, MAX_REASON_CHARS)
    if not reason:
        raise Invalid("Say why it is lowered; it is kept.", code="reason_required")
    operation = loaded(approval.operation_id)
    if not is_as_recorded(operation, approval) or not queries.opens(approval):
        approval.refresh_from_db(fields=["status"])  # after the operation: lowered meanwhile, it is closed
        if approval.status != ApprovalStatus.REQUESTED:
            raise already(approval, operation)
        note_altered(approval, actor)
        raise Conflict("The record of this operation was altered; it is not sent.", code="record_altered")
    _lower_only(operation, changes)
    anew = rewritten(operation, changes)
    draft = anew.draft_of(operation)
    facts = _facts_of(draft)
    verdict = evaluate_again(draft, facts)
    try:
        return _lower(approval, proposal_digest, anew, verdict, facts, actor, reason)
    except NotYours as refused:
        note_refusal(approval, reviewer, channel, refused.code)
        raise
    except Conflict as refused:
        if refused.code == "expired":
            expire(approval.id, approval.operation_id)
        raise


def _lower_only(operation: Operation, changes: Mapping[str, int]) -> None:
    action, present = ACTIONS.get(operation.action), params(operation)
    adjustable = action.adjustable if action else ()
    if not changes or not set(changes) <= set(adjustable):
        able = ", ".join(adjustable) or "nothing"
        raise Invalid(f"Of {operation.action} {able} may be lowered.", code="not_adjustable")
    for name, value in changes.items():
        if type(value) is not int or not 0 < value < present[name]:
            raise Invalid(
                f"{name} must be less than {present[name]}, and more than nothing.", code="not_lower"
            )


def _facts_of(draft: Operation) -> Facts:
    """What it rests on now, with the guards that go with less. Outside every lock."""
    try:
        facts = CONNECTORS[draft.connection.connector].check(call_of(draft))
    except CheckFailed as failed:
        raise Conflict(failed.detail, code=failed.code) from failed
    if broken := facts.broken_guards():
        raise Conflict(
            f"Even so it could not be sent: {broken[0].name} stands against it.", code="guard_broken"
        )
    return facts


@retried
def _lower(
    shown: Approval,
    digest: str,
    anew: Rewritten,
    verdict: Verdict,
    facts: Facts,
    actor: Actor,
    reason: str,
) -> Approval | None:
    locked = lock(shown.operation_id)
    operation = locked.operation
    approval = open_question(locked, shown.pk)
    if digest != approval.proposal_digest or not is_as_recorded(operation, approval):
        raise Conflict(
            "The proposal is not the one that you were shown. Read it again, then decide.",
            code="digest_mismatch",
            extra={"proposal_digest": approval.proposal_digest},
        )
    take_part(actor, approval, requesters=locked.askers)
    if operation.attempts:
        raise Conflict(
            "It was tried before, and its bytes are pinned. Reject it, and let less be proposed.",
            code="already_tried",
        )
    was: dict[str, Any] = {"amount_minor": operation.amount_minor, "digest": approval.proposal_digest}
    ends = close if verdict.outcome == Outcome.DENY else finish  # denied, nobody is asked any more
    ends(locked, approval, ApprovalStatus.SUPERSEDED, actor, reason="lowered")
    rewrite(locked, anew, actor, reason="lowered")
    remember_facts(operation.target, facts)
    record(
        approval.tenant_id,
        "approval.lowered",
        "approval",
        approval.public_id,
        actor,
        before=was,
        after={"amount_minor": operation.amount_minor, "params": operation.params_digest},
        detail={"reason": reason, "operation": operation.public_id},
    )
    decision = remember(operation, verdict)
    if verdict.outcome == Outcome.DENY:
        code, sentence = verdict.rule, (verdict.sentences or {}).get("en", "")
        move(
            locked, OperationStatus.REJECTED, reason=code, actor=actor, error_code=code, error_detail=sentence
        )
        return None
    return ask(
        locked,
        people_decide(verdict, "lowered"),
        facts,
        decision_id=decision.id,
        before=approval,
        why="lowered",
        round=approval.round,
    )
