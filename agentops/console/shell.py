"""The shell around every page: the sidebar with what waits, and where the reader is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import CharField, QuerySet, Value
from django.http import HttpRequest
from django.urls import reverse

from approvals.queries import waiting
from operations.models import Operation
from operations.states import OperationStatus

from .access import Access, access_of

COUNTED = 99  # a badge says "99+" beyond it
_UNCLEAR = (OperationStatus.UNKNOWN, OperationStatus.ESCALATED)


@dataclass(frozen=True)
class Place:
    """One line of the sidebar. `name` marks the line of the present page; `count` is None where nothing is counted."""

    name: str
    label: str
    url: str
    icon: str
    count: int | None = None

    @property
    def badge(self) -> str:
        if not self.count:
            return ""
        return f"{COUNTED}+" if self.count > COUNTED else str(self.count)


@dataclass(frozen=True)
class Counts:
    approvals: int = 0
    unclear: int = 0


def unclear(tenant_ids: frozenset[int]) -> QuerySet[Operation]:
    """Operations that may have happened."""
    return Operation.objects.filter(tenant_id__in=tenant_ids, status__in=_UNCLEAR)


def count(access: Access) -> Counts:
    """Both badges in one bounded query."""
    parts = []
    if access.anywhere("view_approvals"):
        parts.append(_labelled(waiting(access.within("view_approvals")), "approvals"))
    if access.anywhere("view_operations"):
        parts.append(_labelled(unclear(access.within("view_operations")), "unclear"))
    if not parts:
        return Counts()
    found = Counter(kind for (kind,) in parts[0].union(*parts[1:], all=True))
    return Counts(found["approvals"], found["unclear"])


def _labelled(rows: QuerySet[Any], kind: str) -> QuerySet[Any, Any]:
    labelled = rows.order_by().annotate(kind=Value(kind, output_field=CharField()))
    bounded: QuerySet[Any, Any] = labelled.values_list("kind")[: COUNTED + 1]
    return bounded


def groups(access: Access, counts: Counts) -> Sequence[tuple[str, Sequence[Place]]]:
    """The sidebar, without what the person may not see."""
    work = [Place("overview", "Overview", reverse("admin:index"), "overview")]
    if access.anywhere("view_approvals"):
        work.append(
            Place("approvals", "Approvals", reverse("admin:approvals"), "approvals", counts.approvals)
        )
    if access.anywhere("view_operations"):
        url = f"{reverse('admin:operations')}?status=unclear"
        work.append(Place("unclear", "Unknown outcomes", url, "unknown", counts.unclear))
    inspect = []
    if access.anywhere("view_runs"):
        inspect.append(Place("runs", "Runs", reverse("admin:runs"), "runs"))
    if access.anywhere("view_operations"):
        inspect.append(Place("operations", "Operations", reverse("admin:operations"), "operations"))
    if access.anywhere("view_audit"):
        inspect.append(Place("audit", "Audit log", reverse("admin:audit_auditentry_changelist"), "audit"))
    return [
        (name, places)
        for name, places in (("Work", work), ("Inspect", inspect), ("Configure", _configure(access)))
        if places
    ]


def _configure(access: Access) -> list[Place]:
    places = []
    if access.user.is_superuser:
        places.append(Place("tenants", "Tenants", reverse("admin:tenancy_tenant_changelist"), "tenants"))
    if access.anywhere("manage_policies"):
        places.append(Place("policies", "Policies", reverse("admin:approvals_policy_changelist"), "policies"))
    if access.anywhere("manage_access"):
        places.append(
            Place("people", "People and access", reverse("admin:tenancy_membership_changelist"), "people")
        )
        places.append(Place("tokens", "API tokens", reverse("admin:tenancy_apitoken_changelist"), "tokens"))
    if access.user.is_superuser:
        places.append(Place("users", "Accounts", reverse("admin:tenancy_user_changelist"), "users"))
    return places


_ADMIN_PLACES = {
    "auditentry": "audit",
    "tenant": "tenants",
    "policy": "policies",
    "membership": "people",
    "apitoken": "tokens",
    "user": "users",
}


def here(request: HttpRequest) -> str:
    """The name of the place that the request is in; pages of ours are named after theirs ("approvals_review")."""
    match = request.resolver_match
    name = (match.url_name or "") if match else ""
    if name == "index":
        return "overview"
    if name == "operations" and request.GET.get("status") == "unclear":
        return "unclear"
    head, _, tail = name.partition("_")
    return _ADMIN_PLACES.get(tail.partition("_")[0], head)


def context(request: HttpRequest) -> dict[str, object]:
    """What the shell's template needs, for a person who may enter."""
    access = access_of(request)
    counts = count(access)
    return {"places": groups(access, counts), "here": here(request), "counts": counts}
