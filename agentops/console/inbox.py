"""The approvals inbox: what waits, the most pressing first, and whether this reader may decide it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import (
    BooleanField,
    Case,
    Count,
    DateTimeField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Value,
    When,
)
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from agentops.kernel.clock import Now, now
from agentops.kernel.ids import parse
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from approvals import limits, queries, sentences
from approvals.models import Approval, Decision
from approvals.queries import waiting
from approvals.states import Risk
from operations.connectors.registry import ACTIONS

from .access import Access, access_of
from .plain import number

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    class _Rights(TypedDict):
        limit_minor: int | None
        may: bool  # but for the day's limit, which is counted where it is asked for
        in_group: bool
        answered: bool
        has_day: bool
        was_asked: bool
        clock: datetime

    RankedApproval = WithAnnotations[Approval, _Rights]
else:
    RankedApproval = Approval

PAGE = 100
SOON_MINUTES = 15
KEPT = ("q", "action", "tenant")  # what stays when another tab is chosen
FILTERS = {
    "all": "All waiting",
    "high": "High risk",
    "soon": "Expiring soon",
    "mine": "I may decide",
    "today": "Decided by me today",
}
_RISK_ORDER = Case(
    When(risk=Risk.HIGH, then=Value(0)),
    When(risk=Risk.ELEVATED, then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)
_SOON = ExpressionWrapper(Now() + Value(timedelta(minutes=SOON_MINUTES)), output_field=DateTimeField())


@dataclass(frozen=True)
class Row:
    """One line of the inbox. `may` is false where the reader can only look; `ending` is empty while it waits."""

    approval: Approval
    title: str
    reason: str
    risk_label: str
    may: bool
    note: str = ""
    ending: str = ""


def with_rights(approvals: QuerySet[Approval], access: Access) -> QuerySet[RankedApproval]:
    """The rows with `limit_minor` (None: no limit is set), `may` (this reader could approve it), the clock, and
    `was_asked`: people have been asked about the same operation before."""
    entitled = (
        Q(tenant_id__in=access.within("decide_approvals"))
        & (Q(amount_minor__isnull=True) | Q(limit_minor__gte=F("amount_minor")))
        & Q(in_group=True, answered=False)
        & ~Q(requesters__contains=[f"user:{access.user.pk}"])
    )
    may = Case(When(entitled, then=Value(True)), default=Value(False), output_field=BooleanField())
    earlier = Approval.objects.filter(operation_id=OuterRef("operation_id"), id__lt=OuterRef("id"))
    user = access.user
    tenant_id, action, currency = OuterRef("tenant_id"), OuterRef("action"), OuterRef("currency")
    return approvals.annotate(
        limit_minor=limits.each_minor_of(user, user, tenant_id, action, currency),
        has_day=limits.has_day_limit(user, user, tenant_id, currency),
        in_group=Case(When(limits.in_group_of(user), then=Value(True)), default=Value(False)),
        answered=Exists(queries.answers_to_open().filter(approval_id=OuterRef("pk"), reviewer=user)),
        clock=Now(),
        was_asked=Exists(earlier),
    ).annotate(may=may)


def queue(access: Access) -> QuerySet[RankedApproval]:
    """All that waits and that the reader may see, in the order in which it should be decided."""
    rows = with_rights(waiting(access.within("view_approvals")), access)
    return rows.order_by(_RISK_ORDER, F("expires_at").asc(nulls_last=True), "id")


def _filtered(approvals: QuerySet[RankedApproval], query: Mapping[str, str]) -> QuerySet[RankedApproval]:
    match query.get("show"):
        case "high":
            approvals = approvals.filter(risk=Risk.HIGH)
        case "soon":
            approvals = approvals.filter(expires_at__lte=_SOON)
        case "mine":
            approvals = approvals.filter(may=True)
    if query.get("action"):
        approvals = approvals.filter(action=query["action"])
    wanted = query.get("q", "").strip()
    if wanted:  # whole ids only; what waits is few, so the target's name needs no index of its own
        approvals = approvals.filter(
            Q(pk=parse("apr", wanted))
            | Q(operation_id=parse("op", wanted))
            | Q(operation__run_id=parse("run", wanted))
            | Q(operation__target_name=wanted)
        )
    if tenant_id := number(query.get("tenant")):
        approvals = approvals.filter(tenant_id=tenant_id)
    return approvals


def _figures(access: Access) -> dict[str, Any]:
    """How many wait, of which kind, and the oldest: one query."""
    return with_rights(waiting(access.within("view_approvals")), access).aggregate(
        all=Count("id"),
        high=Count("id", filter=Q(risk=Risk.HIGH)),
        soon=Count("id", filter=Q(expires_at__lte=_SOON)),
        mine=Count("id", filter=Q(may=True)),
    )


def row_of(approval: Approval, access: Access, *, may: bool, answered: bool = False) -> Row:
    try:
        vault.opened(approval.data_key_id, approval.data_key)  # came with the row: no look-up for each one
        sheet = queries.proposal(approval)
    except CannotUnseal:  # one that does not open hides none of the others
        why = sentences.code_sentence("unreadable")
        label = sentences.risk_label(approval.risk)
        return Row(approval, sentences.title(approval), why, label, may=False)
    reasons = [sentences.reason_sentence(reason) for reason in sheet["reasons"]]
    warnings = [sentences.warning_sentence(warning) for warning in sheet["warnings"]]
    return Row(
        approval=approval,
        title=sentences.title(sheet),
        reason=(warnings or reasons or [""])[0],
        risk_label=sentences.risk_label(approval.risk),
        may=may,
        note=_note(access, may=may, answered=answered),
    )


def _note(access: Access, *, may: bool, answered: bool) -> str:
    if answered:
        return "you have answered"
    # Whoever decides nothing anywhere need not be told so on every line.
    return "" if may or not access.anywhere("decide_approvals") else "not yours to approve"


def _decided_today(access: Access) -> list[Row]:
    midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
    decisions = (
        Decision.objects.filter(
            reviewer=access.user,
            decided_at__gte=midnight,
            tenant_id__in=access.within("view_approvals"),
        )
        .select_related("approval__tenant", "approval__data_key")
        .order_by("-decided_at")[:PAGE]
    )
    rows = []
    for decision in decisions:
        row = row_of(decision.approval, access, may=False)
        word = "You approved" if decision.verdict == "approve" else "You rejected"
        with suppress(CannotUnseal):
            row = replace(row, reason=queries.reason(decision))
        rows.append(replace(row, note="", ending=word))
    return rows


@require_safe
def inbox(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    visible = access.require("view_approvals")
    query = request.GET.dict()
    show = query.get("show") if query.get("show") in FILTERS else "all"
    figures = _figures(access)
    if show == "today":
        rows = _decided_today(access)
    else:
        approvals = _filtered(queue(access), query).select_related("tenant", "data_key")[: PAGE + 1]
        rows = [
            row_of(approval, access, may=approval.may, answered=approval.answered) for approval in approvals
        ]
    context = {
        **admin.site.each_context(request),
        "title": "Approvals",
        "rows": rows[:PAGE],
        "more": len(rows) > PAGE,
        "figures": figures,
        "show": show,
        "tabs": [(key, label, figures.get(key)) for key, label in FILTERS.items()],
        "tenants": {key: access.tenants[key] for key in visible} if len(visible) > 1 else {},
        "query": query,
        "actions": sorted(name for name in ACTIONS),
        "kept": urlencode({name: query[name] for name in KEPT if query.get(name)}),
        "first": next((row.approval for row in rows if row.may), None),
    }
    return TemplateResponse(request, "console/approvals.html", context)
