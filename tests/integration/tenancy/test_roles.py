"""Roles: groups with grants on the tenant, and a table of them in the docs that is never behind."""

from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test.utils import CaptureQueriesContext
from guardian.models import GroupObjectPermission, UserObjectPermission

from agentops.cli.management.commands.export_roles import roles
from agentops.demo import seed
from agentops.tenancy.access import PERMISSIONS
from agentops.tenancy.models import Membership, Tenant
from approvals import queries
from tests import factories, proposals

pytestmark = pytest.mark.django_db


def test_the_table_of_who_may_do_what_is_that_of_the_code():
    path = Path(__file__).parents[3] / "docs/roles.md"
    assert path.read_text() == roles(), "run manage.py export_roles"
    assert set(PERMISSIONS) == set(Membership.Role)
    known = {name for name, _ in Tenant._meta.permissions}
    assert {name for names in PERMISSIONS.values() for name in names} == known


def test_every_grant_is_on_a_tenant_and_of_a_role():
    tenant = factories.tenant()
    for role in Membership.Role:
        factories.person(tenant, role)
    grants = GroupObjectPermission.objects.all()
    assert not UserObjectPermission.objects.exists()
    assert {grant.content_type for grant in grants} == {ContentType.objects.get_for_model(Tenant)}
    mine = grants.filter(group__name__startswith=f"{tenant.slug}:")
    assert {grant.object_pk for grant in mine} == {str(tenant.pk)}
    assert set(grants.filter(object_pk=str(tenant.pk))) == set(mine)
    names = Group.objects.filter(name__startswith=f"{tenant.slug}:").values_list("name", flat=True)
    assert set(names) == {f"{tenant.slug}:{role.value}" for role in Membership.Role}
    assert {role for _, role, _ in seed.PEOPLE.values()} >= {
        Membership.Role.POLICY_OWNER,
        Membership.Role.LEAD,
    }


def test_proposals_are_read_by_tenant_in_one_in_and_nobody_elses_are_seen():
    mine, theirs = proposals.shop(), proposals.shop()
    asked = [proposals.asked(factories.run(of), order=f"A-{n}") for n, of in enumerate((mine, theirs, mine))]
    person = factories.person(mine)
    with CaptureQueriesContext(connection) as captured:
        seen = list(queries.visible(person))
    assert [each.pk for each in seen] == [asked[0].pk, asked[2].pk]
    reads = [query["sql"] for query in captured if "approvals_approval" in query["sql"]]
    assert len(reads) == 1
    assert "guardian" not in reads[0]
    assert '"approvals_approval"."tenant_id" IN' in reads[0]
