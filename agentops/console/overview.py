"""The overview: what needs this person now, each figure a link to the list behind it."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, Min, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from agentops.kernel.clock import Now
from runs.models import AgentRun
from runs.states import TERMINAL, RunStatus

from .access import Access, access_of
from .inbox import queue, row_of
from .shell import unclear

FIRST = 5
DAY = timedelta(hours=24)


@require_safe
def overview(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    access = access_of(request)
    approvals = queue(access).select_related("tenant", "data_key")[:FIRST]
    context = {
        **admin.site.each_context(request),
        "title": "Overview",
        "may_see_approvals": access.anywhere("view_approvals"),
        "rows": [row_of(approval, access, may=approval.may) for approval in approvals],
        "runs": _runs(access) if access.anywhere("view_runs") else None,
        "unclear": _unclear(access) if access.anywhere("view_operations") else None,
        **(extra_context or {}),
    }
    return TemplateResponse(request, "console/overview.html", context)


def _runs(access: Access) -> dict[str, Any]:
    """Runs that are alive, and those of the last 24 hours by their end."""
    tenants = access.within("view_runs")
    return AgentRun.objects.filter(
        ~Q(status__in=TERMINAL) | Q(created_at__gt=Now() - DAY), tenant_id__in=tenants
    ).aggregate(
        running=Count("id", filter=Q(status=RunStatus.RUNNING)),
        queued=Count("id", filter=Q(status=RunStatus.QUEUED)),
        waiting=Count("id", filter=Q(status=RunStatus.WAITING_FOR_APPROVAL)),
        oldest_queued=Min("created_at", filter=Q(status=RunStatus.QUEUED)),
        done=Count("id", filter=Q(status=RunStatus.COMPLETED)),
        failed=Count("id", filter=Q(status=RunStatus.FAILED)),
        cost_microusd=Sum("spent_microusd", default=0),
    )


def _unclear(access: Access) -> dict[str, Any]:
    """Operations that may have happened, and the money at stake by currency."""
    rows = unclear(access.within("view_operations"))
    by_currency = list(
        rows.values("currency").annotate(n=Count("id"), amount_minor=Sum("amount_minor")).order_by("currency")
    )
    return {
        "count": sum(row["n"] for row in by_currency),
        "money": [row for row in by_currency if row["currency"]],
    }
