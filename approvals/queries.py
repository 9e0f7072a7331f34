"""Reading approvals: what waits, what a reviewer sees, who may decide."""

from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery
from guardian.models import GroupObjectPermission, UserObjectPermission
from guardian.shortcuts import get_objects_for_user

from agentops.kernel.sealed import Place
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant, User

from .models import Approval, Decision, ReviewLimit


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
    currency, reasons: [{code, sentence: {language: text}}], warnings: [{code, operation_id, ...}], risk}."""
    sheet: dict[str, Any] = vault.unseal(proposal_place(approval), approval.sealed_proposal)
    return sheet


def grounds(approval: Approval) -> dict[str, Any]:
    """{facts: [{name, value, source, at, guard}], policy: {number, rule, outcome}, release, requested_by}."""
    found: dict[str, Any] = vault.unseal(grounds_place(approval), approval.sealed_grounds)
    return found


def reason_place(decision: Decision) -> Place:
    return Place("approvals_decision", str(decision.id), "reason")


def reason(decision: Decision) -> str:
    text: str = vault.unseal(reason_place(decision), decision.sealed_reason)["text"]
    return text


def limit_of(user: User, approval: Approval) -> ReviewLimit | None:
    """The limit that applies to `user` for this proposal: the action's own before the general one."""
    limits = ReviewLimit.objects.filter(
        tenant_id=approval.tenant_id,
        reviewer=user,
        currency=approval.currency,
        action__in=[approval.action, ""],
    )
    return max(limits, key=lambda limit: limit.action, default=None)


def within_limit(user: User, approval: Approval) -> bool:
    """Whether the proposal's amount is one that `user` may approve; without an amount there is nothing to limit."""
    if approval.amount_minor is None:
        return True
    limit = limit_of(user, approval)
    return limit is not None and approval.amount_minor <= limit.each_minor


def who_can_approve(approval: Approval) -> list[User]:
    """People who may approve this proposal: with the right in its tenant, the limit, and not among its requesters."""
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
    )
    if approval.amount_minor is not None:
        limits = ReviewLimit.objects.filter(
            tenant_id=approval.tenant_id,
            reviewer_id=OuterRef("pk"),
            currency=approval.currency,
            action__in=[approval.action, ""],
        )
        limit = Subquery(limits.order_by("-action").values("each_minor")[:1])
        people = people.annotate(limit_minor=limit).filter(limit_minor__gte=approval.amount_minor)
    return [
        person
        for person in people.distinct().order_by("username")
        if f"user:{person.pk}" not in approval.requesters
    ]
