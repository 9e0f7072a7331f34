"""Operations: the list, and one operation with its receipt, attempts and evidence; nothing is changed here."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from agentops.kernel.clock import Now
from agentops.kernel.ids import parse
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from approvals.endings import ending_sentence
from approvals.models import Approval, PolicyDecision
from operations import queries
from operations.grades import present_grade
from operations.models import Attempt, Operation
from operations.sentences import (
    action_title,
    finding_sentence,
    grade_sentence,
    money,
    status_label,
    status_sentence,
)
from operations.states import OperationStatus

from .access import Access, access_of, key_in
from .keyset import newest_first
from .names import closed_by
from .plain import number
from .timeline_view import took

UNCLEAR = (OperationStatus.UNKNOWN, OperationStatus.ESCALATED)


def _visible(access: Access) -> QuerySet[Operation]:
    return Operation.objects.filter(tenant_id__in=access.within("view_operations"))


@require_safe
def operation_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    tenant_ids = access.require("view_operations")
    query = request.GET.dict()
    rows = _visible(access).select_related("tenant", "connection")
    if query.get("status") == "unclear":
        rows = rows.filter(status__in=UNCLEAR)
    elif query.get("status") in OperationStatus.values:
        rows = rows.filter(status=query["status"])
    if tenant_id := number(query.get("tenant")):
        rows = rows.filter(tenant_id=tenant_id)
    wanted = query.get("q", "").strip()
    if wanted:
        rows = rows.filter(Q(pk=parse("op", wanted)) | Q(run_id=parse("run", wanted)))
    page = newest_first(rows, query)
    context = {
        **admin.site.each_context(request),
        "title": "Unknown outcomes" if query.get("status") == "unclear" else "Operations",
        "rows": [
            {
                "operation": operation,
                "title": action_title(operation),
                "label": status_label(operation.status),
                "grade": grade_sentence(present_grade(operation.connection)),
            }
            for operation in page.rows
        ],
        "page": page,
        "query": query,
        "statuses": [
            ("", "All"),
            ("unclear", "Unknown outcome"),
            *((status, status_label(status)) for status in OperationStatus.values),
        ],
        "tenants": {key: access.tenants[key] for key in tenant_ids} if len(tenant_ids) > 1 else {},
    }
    return TemplateResponse(request, "console/operations.html", context)


@require_safe
def operation_page(request: HttpRequest, operation_id: str) -> HttpResponse:
    operation = _find(access_of(request), operation_id)
    attempts = queries.attempts(operation) if operation.attempts else []
    findings = queries.findings(operation) if operation.findings_taken else []
    receipt = queries.receipt(operation)
    sent_at = attempts[-1].started_at if attempts else None
    context = {
        **admin.site.each_context(request),
        "title": action_title(operation),
        "operation": operation,
        "label": status_label(operation.status),
        "sentence": status_sentence(operation, sent_at=sent_at),
        "proof": proof(operation, receipt),
        "receipt": _lines(receipt),
        "params": _params(operation),
        "attempts": [_attempt(attempt, findings) for attempt in attempts],
        "findings": [{**finding, "sentence": finding_sentence(finding)} for finding in findings],
        "approvals": _approvals(operation),
        "authority": _authority(operation),
        "grade": grade_sentence(present_grade(operation.connection)),
        "key_is_alive": operation.key_expires_at is not None and operation.key_expires_at > operation.clock,
    }
    return TemplateResponse(request, "console/operation.html", context)


def _find(access: Access, public_id: str) -> Any:
    """The operation with run, tenant, connection, key and the database's clock."""
    decided_by_rule = PolicyDecision.objects.filter(pk=OuterRef("authority_id"))
    operation = (
        _visible(access)
        .filter(pk=key_in("op", public_id))
        .select_related("tenant", "run", "connection", "data_key", "previous")
        .annotate(clock=Now(), rule=Subquery(decided_by_rule.values("rule")[:1]))
        .first()
    )
    if operation is None:
        raise Http404("There is no such operation, or it is none of your tenants'.")
    vault.opened(operation.data_key_id, operation.data_key)
    return operation


def _approvals(operation: Operation) -> list[dict[str, str]]:
    """Every time that people were asked about it, and how that ended."""
    asked: QuerySet[Any] = Approval.objects.filter(operation=operation).annotate(by=closed_by())
    return [
        {
            "id": approval.public_id,
            "ending": ending_sentence(approval, by=approval.by or ""),
        }
        for approval in asked.order_by("requested_at")
    ]


def proof(operation: Operation, receipt: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What a receipt says, in four lines for people; the whole of it stands below."""
    if receipt is None:
        return []
    amount = receipt.get("amount", receipt.get("amount_minor"))
    currency = str(receipt.get("currency") or operation.currency).upper()
    lines = [
        ("Reference", operation.provider_ref),
        ("Amount", money(amount, currency) if isinstance(amount, int) and currency else ""),
        ("Status", str(receipt.get("status") or "")),
        ("Made", _moment(receipt.get("created"))),
    ]
    return [(label, value) for label, value in lines if value]


def _moment(seconds: object) -> str:
    """A provider's moment in words; "" where it is none."""
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(seconds, int):
            return f"{datetime.fromtimestamp(seconds, UTC):%-d %b %H:%M:%S}"
    return ""


def _params(operation: Operation) -> list[tuple[str, str]]:
    """What would be sent; a record that was altered does not open, and its page says so."""
    try:
        return _lines(queries.params(operation))
    except CannotUnseal:
        return [("altered", "The stored parameters do not open: the row was altered. Nothing of it is sent.")]


def _lines(values: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [] if values is None else list(_flat(values))


def _flat(values: dict[str, Any], head: str = "") -> Any:
    """Nested values as dotted names, for a list of two columns."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{head}{name}.")
        elif value not in (None, "", []):
            yield f"{head}{name}", value if isinstance(value, str) else str(value)


def _attempt(attempt: Attempt, findings: list[dict[str, Any]]) -> dict[str, Any]:
    answers = [finding for finding in findings if finding["attempt"] == attempt.number]
    return {
        "number": attempt.number,
        "at": attempt.started_at,
        "digest": attempt.request_digest,
        "key": attempt.idempotency_key,
        "quiet_at": attempt.quiet_at,
        "answer": finding_sentence(answers[-1]) if answers else "No answer yet.",
        "took": _took(attempt.started_at, answers[0]["at"]) if answers else "",
    }


def _took(start: datetime, end: datetime) -> str:
    return took(int((end - start).total_seconds() * 1000))


def _authority(operation: Any) -> str:
    """What allowed it."""
    match operation.authority_kind:
        case "policy":
            return f"A rule of the tenant's policy: {operation.rule}"
        case "approval":
            return "A person's approval"
        case "adopted":
            return "Nobody here: the provider had done it, and the comparison with its list took it over"
    return "Nothing yet"
