"""The inbox's bell: counts per tenant that one may see, at once and when they change."""

import json

import pytest
from django.db import transaction

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from agentops.tenancy.access import join
from agentops.tenancy.models import Membership, Tenant
from approvals.policy import Verdict
from approvals.services import submit
from approvals.states import Outcome
from operations.connectors.base import Facts, Field
from operations.services import intend, propose
from runs.models import AgentRun
from runs.services import lock
from tests import factories

from .test_sockets import code_of_close, frames, signed_in, socket


def ask(tenant: Tenant) -> AgentRun:
    """A run with a refund that waits for a person."""
    run = factories.run(tenant)
    params = {
        "charge": "ch_1",
        "order": "A-1",
        "line": "1",
        "amount_minor": 100,
        "currency": "EUR",
        "reason": "damaged",
    }
    intended = intend(run, "refund.create", target="order:A-1", params=params, reference=str(run.id))
    with transaction.atomic():
        proposed = propose(lock(tenant.id, run.id), "turn-1/call-0", intended, SYSTEM, may_ask_again=bool)
        facts = Facts(fields=[Field("refunded", 0, 100, "money")])
        submit(proposed.locked, Verdict(Outcome.REQUIRE_APPROVAL, "ask", ("ask",)), facts, SYSTEM)
    return run


@pytest.fixture
def tenants(house):
    made = [house().tenant for _ in range(3)]
    for tenant in made:
        factories.connection(tenant, "stripe", "http://127.0.0.1:9")
    return made


def test_a_person_hears_of_each_change_in_the_tenants_they_may_see(served, tenants):
    mine, also_mine, foreign = tenants
    person = factories.person(mine)
    join(also_mine, person, Membership.Role.LEAD)
    ask(also_mine)
    with socket(served, "/ws/approvals", cookie=signed_in(person)) as opened:
        told = {"type": "approvals.changed", "waiting": 1, "tenants": {mine.slug: 0, also_mine.slug: 1}}
        assert frames(opened, 1) == [told]
        ask(foreign)
        run = ask(mine)
        assert frames(opened, 1)[0]["tenants"] == {mine.slug: 1, also_mine.slug: 1}
        cancel_run(mine.id, run.id, actor=SYSTEM, reason="enough")
        assert frames(opened, 1)[0]["tenants"] == {mine.slug: 0, also_mine.slug: 1}
        with socket(served, "/ws/approvals", cookie=signed_in(person)) as second:
            assert frames(second, 1)[0]["waiting"] == 1


def test_the_bell_is_for_people_who_may_see_approvals(served, tenants, house):
    person = factories.person(tenants[0])
    with socket(served, "/ws/approvals") as opened:
        assert code_of_close(opened) == 4401
    with socket(served, "/ws/approvals", token=house().token) as opened:
        assert code_of_close(opened) == 4401
    with socket(served, "/ws/approvals", cookie=signed_in(person)) as opened:
        frames(opened, 1)
        person.groups.clear()
        assert code_of_close(opened) == 4403
    with socket(served, "/ws/approvals", cookie=signed_in(person)) as opened:
        assert code_of_close(opened) == 4403
        opened.close()


def test_what_a_client_says_there_is_not_listened_to(served, tenants):
    person = factories.person(tenants[0])
    with socket(served, "/ws/approvals", cookie=signed_in(person)) as opened:
        opened.send(json.dumps({"type": "cancel"}))
        ask(tenants[0])
        assert {frame["type"] for frame in frames(opened, 2)} == {"approvals.changed"}
