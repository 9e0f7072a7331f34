"""What the signed-in person may do where: grants on tenants, read once a request, in one query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Cast
from django.http import Http404, HttpRequest
from guardian.models import GroupObjectPermission, UserObjectPermission

from agentops.kernel.ids import parse
from agentops.tenancy.models import Tenant, User


@dataclass(frozen=True)
class Access:
    """`tenants`: id -> name of every tenant with any grant; `grants`: permission -> ids of tenants."""

    user: User
    tenants: Mapping[int, str]
    grants: Mapping[str, frozenset[int]]

    def within(self, permission: str) -> frozenset[int]:
        """The tenants in which the person has `permission` ("view_runs")."""
        if self.user.is_superuser:
            return frozenset(self.tenants)
        return self.grants.get(permission, frozenset())

    def anywhere(self, permission: str) -> bool:
        return self.user.is_superuser or bool(self.grants.get(permission))

    def require(self, permission: str) -> frozenset[int]:
        """The same as `within`; where that is nowhere, a 403 that says whom to ask."""
        if not self.anywhere(permission):
            raise PermissionDenied(
                "Your account has no right to see this in any tenant. A tenant administrator can grant it."
            )
        return self.within(permission)


_ATTRIBUTE = "_console_access"


def access_of(request: HttpRequest) -> Access:
    found: Access | None = getattr(request, _ATTRIBUTE, None)
    if found is None:
        found = _read(cast(User, request.user))
        setattr(request, _ATTRIBUTE, found)
    return found


def _read(user: User) -> Access:
    if not user.is_active or not user.is_staff:
        return Access(user, {}, {})
    if user.is_superuser:
        return Access(user, dict(Tenant.objects.order_by("name").values_list("id", "name")), {})
    rows = _rows(UserObjectPermission.objects.filter(user=user)).union(
        _rows(GroupObjectPermission.objects.filter(group__user=user))
    )
    names: dict[int, str] = {}
    grants: dict[str, set[int]] = {}
    for codename, tenant_id, name in rows:
        names[int(tenant_id)] = name
        grants.setdefault(codename, set()).add(int(tenant_id))
    ordered = dict(sorted(names.items(), key=lambda item: item[1]))
    return Access(user, ordered, {codename: frozenset(ids) for codename, ids in grants.items()})


def _rows[Grant: (UserObjectPermission, GroupObjectPermission)](
    grants: QuerySet[Grant],
) -> QuerySet[Grant, tuple[str, str, str]]:
    tenant = Tenant.objects.filter(pk=Cast(OuterRef("object_pk"), BigIntegerField()))
    return (
        grants.filter(content_type__app_label="tenancy", content_type__model="tenant")
        .annotate(tenant_name=Subquery(tenant.values("name")))
        .values_list("permission__codename", "object_pk", "tenant_name")
    )


def key_in(prefix: str, public_id: str) -> UUID:
    """The key that an address names; what is no id of ours is not found, like another tenant's."""
    key = parse(prefix, public_id)
    if key is None:
        raise Http404("There is nothing with this id.")
    return key
