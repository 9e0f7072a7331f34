"""Limits of those who say yes: each and a day, of a person and of a group; the day is counted over rows, under their lock.

The action's own limit comes before the general one, a person's own before that of a group, the highest of the groups'.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce, Concat

from agentops.kernel.clock import day_start, now
from agentops.tenancy.models import Tenant, User
from operations.states import WITHOUT_EFFECT, OperationStatus

from .models import Approval, Decision, ReviewLimit
from .states import ApprovalStatus, VerdictOfPerson

# Whose yes takes of a day's limit; what was sent by it does so too where it was taken back before a further try.
STANDS = Q(approval__status__in=(ApprovalStatus.REQUESTED, ApprovalStatus.APPROVED)) | Q(
    ~Q(approval__operation__status=OperationStatus.PENDING),
    approval__consumed_at__isnull=False,
    approval__operation__authority_id=F("approval_id"),
)


def groups_of(person: User, tenant: Tenant) -> list[str]:
    """The groups of the tenant that the person is in now, by their names in it: "reviewer", "finance"."""
    head = f"{tenant.slug}:"
    names = Group.objects.filter(user=person.pk, name__startswith=head).order_by("name")
    return [name.removeprefix(head) for name in names.values_list("name", flat=True)]


def applying(person: User, approval: Approval, groups: Sequence[str]) -> list[ReviewLimit]:
    """The limits that a yes of the person must keep: the person's own, and one of each group; by id."""
    found = ReviewLimit.objects.filter(
        Q(reviewer=person) | Q(group__in=groups),
        tenant_id=approval.tenant_id,
        currency=approval.currency,
        action__in=[approval.action, ""],
    )
    narrowest: dict[tuple[int | None, str], ReviewLimit] = {}
    for limit in found.order_by("action"):
        narrowest[limit.reviewer_id, limit.group] = limit
    return sorted(narrowest.values(), key=lambda limit: limit.pk)


def locked(limits: Sequence[ReviewLimit]) -> list[ReviewLimit]:
    """The same rows, locked: the last of all locks. Whoever counts a day counts it after the one before has written."""
    rows = ReviewLimit.objects.select_for_update(no_key=True).filter(pk__in=[limit.pk for limit in limits])
    return list(rows.order_by("pk"))


def each_minor(limits: Sequence[ReviewLimit]) -> int | None:
    """The amount up to which one proposal may be approved; None where no limit was set, and then nothing may."""
    own = [limit for limit in limits if limit.reviewer_id is not None]
    best = max(own or limits, key=lambda limit: (limit.action, limit.each_minor), default=None)
    return None if best is None else best.each_minor


def exceeded(approval: Approval, limits: Sequence[ReviewLimit], *, at: datetime | None = None) -> str:
    """ "over_limit" or "over_day" where one more yes to this would be too much; "" where it is not."""
    if approval.amount_minor is None:
        return ""
    each = each_minor(limits)
    if each is None or approval.amount_minor > each:
        return "over_limit"
    for limit in limits:
        if limit.day_minor is not None:
            used = used_minor(limit, approval.tenant, at or now(), but=approval)
            if used is None or used + approval.amount_minor > limit.day_minor:
                return "over_day"
    return ""


def used_minor(limit: ReviewLimit, tenant: Tenant, at: datetime, *, but: Approval) -> int | None:
    """What was approved under this limit on the day of `at`, in the tenant's zone, and has not come to nothing.

    Each proposal once, however many of a group agreed to it. None: nobody knows which day it is there.
    """
    try:
        midnight = day_start(at, tenant.timezone)
    except ValueError:
        return None
    answers = Decision.objects.filter(
        tenant_id=limit.tenant_id,
        verdict=VerdictOfPerson.APPROVE,
        decided_at__gte=midnight,
        decided_at__lte=at,
        approval__currency=limit.currency,
        approval__operation__reversed_at__isnull=True,
    )
    answers = answers.filter(STANDS).exclude(approval__operation__status__in=sorted(WITHOUT_EFFECT))
    if limit.action:
        answers = answers.filter(approval__action=limit.action)
    if limit.reviewer_id is not None:
        answers = answers.filter(reviewer_id=limit.reviewer_id)
    else:
        answers = answers.filter(groups__contains=[limit.group])
    counted = Approval.objects.filter(pk__in=answers.exclude(approval=but).values("approval_id"))
    return int(counted.aggregate(sum=Sum("amount_minor"))["sum"] or 0)


def each_minor_of(person: Any, person_inside: Any, tenant_id: Any, action: Any, currency: Any) -> Coalesce:
    """`each_minor` in a query: the arguments are values or references; `person_inside` is `person` one query deeper."""
    limits = ReviewLimit.objects.filter(
        Q(action=action) | Q(action=""), tenant_id=tenant_id, currency=currency
    )
    own = limits.filter(reviewer=person).order_by("-action", "-each_minor")
    of_groups = limits.filter(_is_of_group_of(person_inside)).order_by("-action", "-each_minor")
    return Coalesce(Subquery(own.values("each_minor")[:1]), Subquery(of_groups.values("each_minor")[:1]))


def has_day_limit(person: Any, person_inside: Any, tenant_id: Any, currency: Any) -> Exists:
    limits = ReviewLimit.objects.filter(tenant_id=tenant_id, currency=currency, day_minor__isnull=False)
    return Exists(limits.filter(Q(reviewer=person) | _is_of_group_of(person_inside)))


def _is_of_group_of(person: Any) -> Q:
    named: QuerySet[Group] = Group.objects.filter(
        user=person, name=Concat(OuterRef("tenant__slug"), Value(":"), OuterRef("group"))
    )
    return ~Q(group="") & Q(Exists(named))


def in_group_of(person: User) -> Q:
    """Rows of approvals whose group the person is in, or the one that it was escalated to, or that ask everybody."""

    def member(field: str) -> Q:
        name = Concat(OuterRef("tenant__slug"), Value(":"), OuterRef(field))
        return Q(Exists(Group.objects.filter(user=person, name=name)))

    return Q(group="") | member("group") | Q(escalated_at__isnull=False) & member("escalate_to")
