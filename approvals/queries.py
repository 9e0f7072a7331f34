"""Reading approvals: what waits, what a reviewer sees, who may decide."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet
from guardian.models import GroupObjectPermission, UserObjectPermission
from guardian.shortcuts import get_objects_for_user

from agentops.kernel.clock import Now
from agentops.kernel.sealed import CannotUnseal, Place
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant, User

from . import limits
from .models import Approval, Decision
from .states import ApprovalStatus

# Time ends a question whether or not anybody has written that down yet.
IS_LATE = Q(status=ApprovalStatus.REQUESTED, expires_at__lte=Now())
IS_OPEN = Q(status=ApprovalStatus.REQUESTED) & (Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))


def tenants_for(user: User, permission: str) -> QuerySet[Tenant]:
    """The tenants in which `user` has `permission` ("view_approvals"): a grant on the tenant, never on a row."""
    tenants: QuerySet[Tenant] = get_objects_for_user(
        user, f"tenancy.{permission}", klass=Tenant, use_groups=True, accept_global_perms=False
    )
    return tenants


def visible(user: User) -> QuerySet[Approval]:
    """The approvals that `user` may see, with their operation, run and tenant, oldest first."""
    tenant_ids = list(tenants_for(user, "view_approvals").values_list("id", flat=True))
    return (
        Approval.objects.filter(tenant_id__in=tenant_ids)
        .select_related("tenant", "operation", "operation__run")
        .order_by("requested_at", "id")
    )


def proposal_place(approval: Approval) -> Place:
    return Place("approvals_approval", str(approval.id), "proposal")


def grounds_place(approval: Approval) -> Place:
    return Place("approvals_approval", str(approval.id), "grounds")


def proposal(approval: Approval) -> dict[str, Any]:
    """{action, action_version, target, connection, params, fields: [{name, before, after, kind}], amount_minor,
    currency, reasons: [{code, sentence: {language: text}}], warnings: [{code, operation_id, ...}], risk,
    moved: {since, why, changes: [{name, kind, then, now}]} where it is asked again}."""
    sheet: dict[str, Any] = vault.unseal(proposal_place(approval), approval.sealed_proposal)
    return sheet


def grounds(approval: Approval) -> dict[str, Any]:
    """{facts: [{name, value, source, at, guard}], policy: {number, rule, outcome, codes}, release, action_version,
    requested_by, rights: {principal: [scope]}}."""
    found: dict[str, Any] = vault.unseal(grounds_place(approval), approval.sealed_grounds)
    return found


def opens(approval: Approval) -> bool:
    """Whether what people are asked, and what it rests on, can be read: nobody agrees to what nobody can read."""
    try:
        proposal(approval), grounds(approval)
    except CannotUnseal:
        return False
    return True


def moved_place(approval: Approval) -> Place:
    return Place("approvals_approval", str(approval.id), "moved")


def moved(approval: Approval) -> list[dict[str, Any]]:
    """[{name, kind, then, now}]: what was otherwise when the approval was used than when it was asked, and broke nothing."""
    if approval.sealed_moved is None:
        return []
    found: list[dict[str, Any]] = vault.unseal(moved_place(approval), approval.sealed_moved)["moved"]
    return found


def reason_place(decision: Decision) -> Place:
    return Place("approvals_decision", str(decision.id), "reason")


def reason(decision: Decision) -> str:
    text: str = vault.unseal(reason_place(decision), decision.sealed_reason)["text"]
    return text


def has_answered(person: User, approval: Approval) -> bool:
    """Whether the person has answered a question that is still open: nobody counts twice. One answer of one ends it."""
    return approval.required > 1 and answers_to_open().filter(approval=approval, reviewer=person).exists()


def answers_to_open() -> QuerySet[Decision]:
    return Decision.objects.filter(approval__status=ApprovalStatus.REQUESTED)


def who_can_approve(approval: Approval, *, group: str = "") -> list[User]:
    """People who may say yes to this proposal now: right, group, limit, not among its requesters, no answer given yet; of
    `group` only.

    One query, and some more for each whose day is limited.
    """
    granted: dict[str, Any] = {
        "permission__codename": "decide_approvals",
        "permission__content_type__app_label": "tenancy",
        "object_pk": str(approval.tenant_id),
    }
    people = User.objects.filter(
        Q(pk__in=UserObjectPermission.objects.filter(**granted).values("user_id"))
        | Q(pk__in=GroupObjectPermission.objects.filter(**granted).values("group__user")),
        is_active=True,
        memberships__tenant_id=approval.tenant_id,
    ).exclude(pk__in=answers_to_open().filter(approval=approval).values("reviewer_id"))
    for names in filter(None, (_deciding(approval), [group] if group else [])):
        slug = approval.tenant.slug
        people = people.filter(
            pk__in=User.objects.filter(groups__name__in=[f"{slug}:{name}" for name in names])
        )
    person, inside = OuterRef("pk"), OuterRef(OuterRef("pk"))
    if approval.amount_minor is not None:
        each = limits.each_minor_of(person, inside, approval.tenant_id, approval.action, approval.currency)
        day = limits.has_day_limit(person, inside, approval.tenant_id, approval.currency)
        people = people.annotate(limit_minor=each, has_day=day).filter(limit_minor__gte=approval.amount_minor)
    return [
        person
        for person in people.distinct().order_by("username")
        if f"user:{person.pk}" not in approval.requesters and not _has_used_the_day(person, approval)
    ]


def _deciding(approval: Approval) -> list[str]:
    """The groups that decide; none where everybody does who may."""
    if not approval.group:
        return []
    return [
        approval.group,
        *([approval.escalate_to] if approval.escalated_at and approval.escalate_to else []),
    ]


def _has_used_the_day(person: Any, approval: Approval) -> bool:
    if not getattr(person, "has_day", False):
        return False
    groups = limits.groups_of(person, approval.tenant)
    return bool(limits.exceeded(approval, limits.applying(person, approval, groups)))


def waiting(tenant_ids: Collection[int]) -> QuerySet[Approval]:
    """Proposals that may still be decided, by the database's clock; some have no end."""
    return Approval.objects.filter(IS_OPEN, tenant_id__in=tenant_ids)


def waiting_long(hours: int, limit: int = 20) -> list[Approval]:
    """The oldest that still wait after so many hours, in any tenant: what never expires must not be forgotten."""
    since = Now() - timedelta(hours=hours)
    return list(Approval.objects.filter(IS_OPEN, requested_at__lt=since).order_by("requested_at")[:limit])


def name_of(actor: str) -> str:
    """The name of `user:7`; of whoever is no person, what stands in the record."""
    key = actor.removeprefix("user:")
    person = User.objects.filter(pk=int(key)).first() if key.isdecimal() else None
    return (person.get_full_name() or person.username) if person else actor
