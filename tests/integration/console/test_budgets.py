"""How many queries a page may ask, whatever the number of rows; and what a thousand rows do not hide."""

import re
from datetime import timedelta

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.kernel.clock import now
from agentops.tenancy.access import join
from agentops.tenancy.models import Membership, Tenant, User
from approvals.models import Approval
from tests import factories, proposals
from tests.stage import sql

ROLE = Membership.Role
OWN_PAGE, CHANGELIST, OVERVIEW, DECISION = 8, 6, 10, 15


@pytest.fixture
def tenant(db: None) -> Tenant:
    return proposals.shop("acme")


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def grow(tenant: Tenant, rows: int) -> list[Approval]:
    return [
        proposals.asked(factories.run(tenant, f"Refund A-{number}"), order=f"A-{number}")
        for number in range(Approval.objects.count(), rows)
    ]


def queries_of(client: Client, path: str) -> int:
    client.get(path)  # opened keys and content types stay in memory, as in a process that has served before
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(path).status_code == 200
    return len([query for query in captured if not query["sql"].startswith(("SAVEPOINT", "RELEASE"))])


def test_own_pages_ask_the_same_few_queries_for_one_row_and_for_fifty(tenant: Tenant) -> None:
    client = client_of(factories.person(tenant, ROLE.LEAD, each_minor=200_000))
    first = grow(tenant, 1)[0]
    run, operation = first.operation.run.public_id, first.operation.public_id
    budgets = {
        "/admin/": OVERVIEW,
        "/admin/approvals/": OWN_PAGE,
        "/admin/approvals/?show=mine": OWN_PAGE,
        "/admin/approvals/?show=today": OWN_PAGE,
        f"/admin/approvals/{first.public_id}/": OWN_PAGE,
        "/admin/runs/": OWN_PAGE,
        f"/admin/runs/{run}/": OWN_PAGE,
        f"/admin/runs/{run}/events/": OWN_PAGE,
        "/admin/operations/": OWN_PAGE,
        f"/admin/operations/{operation}/": OWN_PAGE,
    }
    with_one = {path: queries_of(client, path) for path in budgets}
    grow(tenant, 50)
    with_fifty = {path: queries_of(client, path) for path in budgets}
    assert with_fifty == with_one
    assert {path: asked for path, asked in with_one.items() if asked > budgets[path]} == {}


def test_saying_who_can_approve_costs_one_query_for_any_number_of_people(tenant: Tenant) -> None:
    reviewer = factories.person(tenant, ROLE.REVIEWER, each_minor=1)
    path = f"/admin/approvals/{grow(tenant, 1)[0].public_id}/"
    client = client_of(reviewer)
    few = queries_of(client, path)
    for _ in range(10):
        factories.person(tenant, ROLE.LEAD, each_minor=200_000)
    assert queries_of(client, path) == few <= OWN_PAGE


@pytest.mark.parametrize(
    "path",
    [
        "tenancy/tenant",
        "tenancy/user",
        "tenancy/membership",
        "tenancy/apitoken",
        "approvals/policy",
        "audit/auditentry",
    ],
)
def test_lists_of_the_stock_admin_ask_few_queries(tenant: Tenant, path: str) -> None:
    client = client_of(User.objects.create(username="ada", is_staff=True, is_superuser=True))
    with_few = queries_of(client, f"/admin/{path}/")
    grow(tenant, 10)
    for _ in range(10):
        factories.person(tenant)
        factories.token(tenant)
    assert queries_of(client, f"/admin/{path}/") == with_few <= CHANGELIST


def test_a_decision_is_made_of_few_reads(tenant: Tenant) -> None:
    """Only our own reads are counted here: what the service writes is the service's own budget."""
    ContentType.objects.clear_cache()
    reviewer = factories.person(tenant, ROLE.LEAD, each_minor=200_000)
    approvals = grow(tenant, 3)
    client = client_of(reviewer)
    form = proposals.form_of(client, approvals[0]) | {"verdict": "approve", "form_id": "one"}
    with CaptureQueriesContext(connection) as captured:
        assert client.post(f"/admin/approvals/{approvals[0].public_id}/", form).status_code == 302
    before_the_service = [query["sql"] for query in captured]
    locks = next(place for place, sql in enumerate(before_the_service) if "FOR NO KEY UPDATE" in sql)
    assert locks <= DECISION


def flooded(approval: Approval, copies: int) -> None:
    """So many more of the same question, each about an operation of its own, by the rows."""
    sql(
        """INSERT INTO operations_operation SELECT made.* FROM operations_operation o, generate_series(1, %s) n,
        LATERAL jsonb_populate_record(o, jsonb_build_object('id', gen_random_uuid(), 'operation_key', n::text,
        'idempotency_key', n::text)) made WHERE o.id = %s""",
        copies,
        approval.operation_id,
    )
    sql(
        """INSERT INTO approvals_approval SELECT made.* FROM approvals_approval a JOIN operations_operation o
        ON o.tenant_id = a.tenant_id AND o.id <> a.operation_id, LATERAL jsonb_populate_record(a,
        jsonb_build_object('id', gen_random_uuid(), 'operation_id', o.id)) made WHERE a.id = %s""",
        approval.id,
    )


def test_a_thousand_of_one_tenant_do_not_hide_the_urgent_one_of_another(
    tenant: Tenant,
) -> None:
    reviewer = factories.person(tenant, ROLE.REVIEWER, each_minor=200_000)
    (approval,) = grow(tenant, 1)
    other = proposals.shop("globex")
    join(other, reviewer, ROLE.REVIEWER)
    flooded(approval, 1_000)
    urgent = proposals.asked(factories.run(other, "Refund"))
    Approval.objects.filter(pk=urgent.pk).update(expires_at=now() + timedelta(minutes=10))
    client = client_of(reviewer)

    def rows(show: str = "") -> list[str]:
        page = client.get(f"/admin/approvals/{show}").content.decode()
        return re.findall(r'data-row href="/admin/approvals/(apr_\w+)/"', page)

    assert len(rows()) == 100
    assert rows()[0] == urgent.public_id
    Approval.objects.filter(tenant=tenant).update(
        risk="high"
    )  # whose risk is higher stands first, and there are lanes
    for lane in ("?show=soon", f"?tenant={other.pk}"):
        assert rows(lane) == [urgent.public_id]
