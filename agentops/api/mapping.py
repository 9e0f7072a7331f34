"""Rows into the shapes of the public contract. The callers have loaded what is read here; nothing is queried twice."""

from typing import Any
from uuid import UUID

from django.db.models import Case, Model, QuerySet, Value, When

from agentops.engine.control import CancelReceipt
from agentops.kernel.ids import parse, show
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy.bearer import may
from agentops.tenancy.principals import Principal
from approvals import queries as approvals
from approvals.endings import moved_sentence
from approvals.models import Approval, Decision
from approvals.sentences import reason_sentence, warning_sentence
from approvals.states import ApprovalStatus
from operations import queries as operations
from operations.models import Interest, Operation
from runs import queries as runs
from runs.models import AgentRun

from . import shapes

MICROUSD_PER_CENT = 10_000


def named[Row: Model](rows: QuerySet[Row], prefix: str, text: str) -> Row | None:
    """The one of `rows` that the public id `text` names; None where it is malformed, unknown or not among them."""
    key = parse(prefix, text)
    return None if key is None else rows.filter(pk=key).first()


def status_url(run: AgentRun) -> str:
    return f"/v1/runs/{run.public_id}"


def started(run: AgentRun) -> shapes.Started:
    return shapes.Started(
        run_id=run.public_id,
        status=run.status,
        events_url=f"{status_url(run)}/events",
        status_url=status_url(run),
    )


def run(row: AgentRun, principal: Principal) -> shapes.Run:
    """A run as `principal` may see it: open approvals with approvals:read, receipts with operations:read."""
    where_it_applies: dict[str, Any] = _ending(row)
    if row.retry_of_id is not None:
        where_it_applies["retry_of"] = show("run", row.retry_of_id)
    result = runs.result(row)
    asked = approvals_of(row).filter(approvals.IS_OPEN)
    if not may(principal, "approvals:read"):
        asked = asked.none()
    return shapes.Run(
        run_id=row.public_id,
        agent=row.agent,
        status=row.status,
        blocked_on=row.blocked_on,
        actor=row.actor,
        conversation_id=row.conversation.external_id if row.conversation else None,
        release=row.release.digest,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        steps_taken=row.steps_taken,
        cost_microusd=row.spent_microusd,
        budget_cents=row.budget_microusd // MICROUSD_PER_CENT,
        result=shapes.Result(**result) if result else None,
        error=_error(row.error_code, row.error_detail or row.ending_reason),
        pending_approvals=[approval(question) for question in asked],
        operations=operations_of(row, with_receipt=may(principal, "operations:read")),
        last_event_seq=row.last_event_seq,
        trace_id=row.trace_id,
        events_url=f"{status_url(row)}/events",
        status_url=status_url(row),
        **where_it_applies,
    )


def _ending(row: AgentRun) -> dict[str, Any]:
    if row.is_terminal or not row.ending:
        return {}
    return {"cancelling" if row.ending == "cancelled" else "failing": True}


def _error(code: str, detail: str) -> shapes.Error | None:
    return shapes.Error(code=code, detail=detail) if code else None


def approvals_of(row: AgentRun) -> QuerySet[Approval]:
    """The approvals of every operation that a step of the run stands for, oldest first."""
    return (
        Approval.objects.filter(operation__in=_operation_ids(row))
        .select_related("operation")
        .prefetch_related("decisions__reviewer")
        .annotate(is_late=Case(When(approvals.IS_LATE, then=Value(True)), default=Value(False)))
        .order_by("id")
    )


def approval(row: Approval) -> shapes.Approval:
    decided = sorted(row.decisions.all(), key=lambda decision: decision.id)
    return shapes.Approval(
        approval_id=row.public_id,
        run_id=show("run", row.operation.run_id),
        operation_id=row.operation.public_id,
        status=ApprovalStatus.EXPIRED if getattr(row, "is_late", False) else row.status,
        proposal=_proposal(row),
        proposal_digest=row.proposal_digest,
        required=row.required,
        decisions=[_decision(decision) for decision in decided],
        expires_at=row.expires_at,
    )


def _decision(row: Decision) -> shapes.Decision:
    return shapes.Decision(
        reviewer=row.reviewer.username,
        verdict=row.verdict,
        reason=_reason(row),
        channel=row.channel,
        decided_at=row.decided_at,
    )


def _reason(row: Decision) -> str:
    try:
        return approvals.reason(row)
    except CannotUnseal:
        return ""


def _proposal(row: Approval) -> shapes.Proposal:
    try:
        sheet = approvals.proposal(row)
    except CannotUnseal:
        return _unreadable(row)
    return shapes.Proposal(
        action=sheet["action"],
        target=sheet["target"],
        fields=[
            shapes.ProposalField(name=field["name"], before=field["before"], after=field["after"])
            for field in sheet["fields"]
        ],
        reasons=[
            shapes.ProposalReason(code=reason["code"], text=reason_sentence(reason))
            for reason in sheet["reasons"]
        ],
        warnings=[
            shapes.ProposalWarning(
                code=warning["code"],
                text=warning_sentence(warning),
                **({"operation_id": warning["operation_id"]} if "operation_id" in warning else {}),
            )
            for warning in sheet["warnings"]
        ]
        + _moved(row, sheet),
        risk=sheet["risk"],
        **_amount(row),
    )


def _unreadable(row: Approval) -> shapes.Proposal:
    """What the columns say of a proposal whose words do not open: it may still be refused."""
    warning = {"code": "unreadable"}
    return shapes.Proposal(
        action=row.action,
        target=row.operation.target_text,
        fields=[],
        reasons=[],
        warnings=[shapes.ProposalWarning(code="unreadable", text=warning_sentence(warning))],
        risk=row.risk,
        **_amount(row),
    )


def _moved(row: Approval, sheet: dict[str, Any]) -> list[shapes.ProposalWarning]:
    """That it is asked again, and what is otherwise than before."""
    if "moved" not in sheet:
        return []
    text = moved_sentence(sheet["moved"], currency=row.currency)
    return [shapes.ProposalWarning(code="asked_again", text=text)]


def operations_of(row: AgentRun, *, with_receipt: bool) -> list[shapes.Operation]:
    """Every operation that a step of the run stands for, oldest first."""
    rows = Operation.objects.filter(id__in=_operation_ids(row)).select_related("connection").order_by("id")
    return [operation(each, with_receipt=with_receipt) for each in rows]


def operation(row: Operation, *, with_receipt: bool = True) -> shapes.Operation:
    return shapes.Operation(
        operation_id=row.public_id,
        run_id=show("run", row.run_id),
        action=row.action,
        target=row.target_text,
        status=row.status,
        provider=row.connection.connector,
        provider_ref=row.provider_ref or None,
        receipt=operations.receipt(row) if with_receipt else None,
        error=_error(row.error_code, row.error_detail),
        attempts=row.attempts,
        key_expires_at=row.key_expires_at,
        created_at=row.created_at,
        updated_at=row.updated_at,
        **_amount(row),
    )


def _amount(row: Approval | Operation) -> dict[str, Any]:
    return {} if row.amount_minor is None else {"amount_minor": row.amount_minor, "currency": row.currency}


def _operation_ids(row: AgentRun) -> QuerySet[Interest, UUID]:
    return Interest.objects.filter(run_id=row.id).values_list("operation_id", flat=True)


def cancelled(receipt: CancelReceipt) -> shapes.Cancelled:
    run = receipt.run
    return shapes.Cancelled(
        run_id=run.public_id,
        status=run.status,
        requested_by=receipt.requested_by,
        reason=receipt.reason,
        effects=[
            shapes.Effect(
                operation_id=effect.operation_id,
                action=effect.action,
                target=effect.target,
                outcome=effect.outcome,
                **({"provider_ref": effect.provider_ref} if effect.provider_ref else {}),
            )
            for effect in receipt.effects
        ],
        **_ending(run),
    )
