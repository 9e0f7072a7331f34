"""Who may do what: a role in a tenant is a group with grants on that tenant, never on a row."""

from collections.abc import Mapping

from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from guardian.models import GroupObjectPermission

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
        _grant(tenant)
    return tenant


def _grant(tenant: Tenant) -> None:
    """The groups of a new tenant with what each may do there: four statements, where one grant alone takes four."""
    groups = Group.objects.bulk_create(Group(name=f"{tenant.slug}:{role.value}") for role in Membership.Role)
    type_ = ContentType.objects.get_for_model(Tenant)
    known = {each.codename: each for each in Permission.objects.filter(content_type=type_)}
    GroupObjectPermission.objects.bulk_create(
        GroupObjectPermission(
            permission=known[codename], content_type=type_, object_pk=str(tenant.pk), group=group
        )
        for group, role in zip(groups, Membership.Role, strict=True)
        for codename in PERMISSIONS[role]
    )


@transaction.atomic
def join(tenant: Tenant, user: User, role: Membership.Role) -> Membership:
    """Give a person a role in a tenant, and with it that role's grants."""
    membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
    roles = [f"{tenant.slug}:{each.value}" for each in Membership.Role]  # groups of the tenant's own stay
    user.groups.remove(*user.groups.filter(name__in=roles))
    user.groups.add(Group.objects.get(name=f"{tenant.slug}:{role.value}"))
    return membership
