"""Who may do what: a role in a tenant is a group with grants on that tenant, never on a row."""

from collections.abc import Mapping

from django.contrib.auth.models import Group
from django.db import transaction
from guardian.shortcuts import assign_perm

from . import vault
from .models import Membership, Tenant, User

_LOOK = ("view_runs", "view_operations", "view_approvals")
PERMISSIONS: Mapping[str, tuple[str, ...]] = {
    Membership.Role.REVIEWER: (*_LOOK, "decide_approvals"),
    Membership.Role.LEAD: (*_LOOK, "decide_approvals", "cancel_runs"),
    Membership.Role.ENGINEER: (*_LOOK, "cancel_runs", "control_runs", "settle_operations"),
    Membership.Role.POLICY_OWNER: (*_LOOK, "manage_policies"),
    Membership.Role.TENANT_ADMIN: (*_LOOK, "manage_access"),
    Membership.Role.AUDITOR: (*_LOOK, "view_audit"),
}


@transaction.atomic
def create_tenant(slug: str, name: str) -> Tenant:
    """A tenant with its own keys; one that exists is returned as it is."""
    tenant, is_new = Tenant.objects.get_or_create(slug=slug, defaults={"name": name})
    if is_new:
        vault.make(tenant.id, "tenant")
        vault.make(tenant.id, "identity")
        for role in Membership.Role:
            group, _ = Group.objects.get_or_create(name=f"{slug}:{role.value}")
            for permission in PERMISSIONS[role]:
                assign_perm(f"tenancy.{permission}", group, tenant)
    return tenant


@transaction.atomic
def join(tenant: Tenant, user: User, role: Membership.Role) -> Membership:
    """Give a person a role in a tenant, and with it that role's grants."""
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
    roles = [f"{tenant.slug}:{each.value}" for each in Membership.Role]  # groups of the tenant's own stay
    user.groups.remove(*user.groups.filter(name__in=roles))
    user.groups.add(Group.objects.get(name=f"{tenant.slug}:{role.value}"))
    return membership
