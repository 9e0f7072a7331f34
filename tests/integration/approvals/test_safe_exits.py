"""Every way out works whatever has changed or gone since the question was asked: no fault of ours, and nothing is sent."""

from dataclasses import replace
from io import StringIO

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.test import Client
from pydantic import BaseModel

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from agentops.tenancy import vault
from agentops.tenancy.access import join
from agentops.tenancy.models import Membership
from approvals.models import Approval
from approvals.services import expire_due, revoke
from operations.connectors import registry
from operations.models import Connection
from operations.states import OperationStatus
from tests import factories, proposals
from tests.world import GIFT

S = OperationStatus
FINANCE = {"code": "finance", "when": "true", "outcome": "require_approval", "group": "finance"}


class OtherParams(BaseModel):
    iban: str
    cents: float


def schema_changed(world, patch):
    other = replace(
        GIFT, version=2, params=OtherParams, intent=("iban",), adjustable=(), amount=lambda params: None
    )
    patch.setitem(registry.ACTIONS, GIFT.name, replace(other, facts={}))


def tool_deleted(world, patch):
    patch.delitem(registry.ACTIONS, GIFT.name)
    patch.delitem(registry.CONNECTORS, "world")


def connector_disabled(world, patch):
    Connection.objects.filter(connector="world").update(enabled=False)


def key_rotated(world, patch):
    call_command("rotate_keys", "--tenant", world.tenant.slug, stdout=StringIO())
    vault.forget()


def group_removed(world, patch):
    Group.objects.filter(name="acme:finance").delete()


def rules_gone(world, patch):
    factories.policy(world.tenant, GIFT.name, [{"code": "broken", "when": "((", "outcome": "allow"}])


CHANGES = (schema_changed, tool_deleted, connector_disabled, key_rotated, group_removed, rules_gone)


def reject(world, approval, person):
    world.decide(approval, person, "reject")


def reject_on_the_page(world, approval, person):
    client = Client()
    client.force_login(person)
    form = {"verdict": "reject", "comment": "No.", "form_id": "one", **proposals.form_of(client, approval)}
    assert client.post(f"/admin/approvals/{approval}/", form).status_code == 302


def reject_over_rest(world, approval, person):
    text = factories.token(world.tenant, "approvals:decide", person=person)
    named = {"approval_id": str(approval), "proposal_digest": approval.proposal_digest, "reason": "No."}
    path = f"/v1/runs/{approval.operation.run.public_id}/approvals/reject"
    bearer = {"Authorization": f"Bearer {text}"}
    answer = Client().post(path, named, headers=bearer, content_type="application/json")
    assert (answer.status_code, answer.json()["status"]) == (200, "rejected")


def expire(world, approval, person):
    world.move_clock(24 * 3600 + 1)
    assert expire_due() == 1


def cancel(world, approval, person):
    cancel_run(world.tenant.id, approval.operation.run_id, actor=SYSTEM, reason="Called off.")


def take_back(world, approval, person):
    revoke(world.tenant.id, approval.id, reviewer=person, reason="Wait.", channel="admin")


# The exit; whether it leaves from a yes; how approval and operation end.
EXITS = {
    "reject": (reject, False, "rejected", S.REJECTED),
    "reject on the page": (reject_on_the_page, False, "rejected", S.REJECTED),
    "reject over REST": (reject_over_rest, False, "rejected", S.REJECTED),
    "expire": (expire, False, "expired", S.EXPIRED),
    "withdraw": (cancel, False, "withdrawn", S.CANCELLED),
    "cancel": (cancel, True, "approved", S.CANCELLED),
    "revoke": (take_back, True, "revoked", S.PENDING),
}


@pytest.mark.parametrize("exit", EXITS)
def test_a_way_out_works_whatever_has_gone_since(still_world, monkeypatch, exit):
    world = still_world
    leave, from_yes, ends, becomes = EXITS[exit]
    finance = Group.objects.create(name="acme:finance")
    for change in CHANGES:
        factories.policy(world.tenant, GIFT.name, [FINANCE])
        Group.objects.get_or_create(name="acme:finance")
        person = factories.person(world.tenant, each_minor=40_000)
        person.groups.add(Group.objects.get(name="acme:finance"))
        approval = world.ask()
        if from_yes:
            world.decide(approval, person)
        with monkeypatch.context() as patch:
            change(world, patch)
            page = f"/admin/approvals/{approval.public_id}/"
            client = Client()
            client.force_login(person)
            assert client.get(page).status_code == 200, change.__name__
            leave(world, approval, person)
            approval.refresh_from_db()
            operation = approval.operation
            operation.refresh_from_db()
            denied = change is rules_gone and exit == "revoke"  # the rules in force are asked, and deny
            assert (approval.status, operation.status) == (ends, S.REJECTED if denied else becomes), change
            assert client.get(page).status_code == 200, change.__name__
            assert client.get(f"/admin/operations/{operation.public_id}/").status_code == 200, change.__name__
            world.send(operation)
        Connection.objects.update(enabled=True)
    assert world.connector.books == {}
    assert not Approval.objects.filter(status="requested").exclude(operation__status=S.PENDING).exists()
    assert finance.pk


def test_what_was_allowed_waits_while_its_connection_is_disabled_and_leaves_when_it_is_enabled(
    world, monkeypatch
):
    person = factories.person(world.tenant, each_minor=40_000)
    approval = world.ask()
    world.decide(approval, person)
    connector_disabled(world, monkeypatch)
    assert world.send(approval.operation).status == S.APPROVED
    assert world.connector.books == {}
    Connection.objects.update(enabled=True)
    world.move_clock(60)
    assert world.send(approval.operation).status == S.SUCCEEDED


@pytest.mark.case("D-4")
def test_nobodys_silence_is_told_as_such_and_what_has_no_end_is_seen_to_wait(still_world, caplog):
    from agentops.audit.models import AuditEntry
    from agentops.engine.settle import bring
    from agentops.engine.tasks import tell_reviewers
    from agentops.sdk.errors import OperationRefused
    from approvals.models import Decision

    world = still_world
    hour = {"code": "hour", "when": "true", "outcome": "require_approval", "expires_hours": 1}
    factories.policy(world.tenant, GIFT.name, [hour])
    soon = world.ask()
    factories.policy(world.tenant, GIFT.name, [hour | {"code": "endless", "expires_hours": None}])
    endless = world.ask()
    person = factories.person(world.tenant, each_minor=40_000)
    join(world.tenant, person, Membership.Role.LEAD)
    world.move_clock(3601)
    assert expire_due() == 1
    soon.operation.refresh_from_db()
    with pytest.raises(OperationRefused) as told:
        bring(soon.operation, "test")
    assert (told.value.status, told.value.code) == ("expired", "expired")
    assert "Nobody decided in time. This is not a refusal" in told.value.reason
    assert not Decision.objects.exists()
    assert AuditEntry.objects.get(verb="approval.expired").actor == "system"
    world.move_clock(90 * 24 * 3600)
    assert expire_due() == 0
    tell_reviewers()
    assert any(
        "approval_waits_long" in str(each.msg) and str(endless) in str(each.msg) for each in caplog.records
    )
    world.decide(endless, person)
    assert Approval.objects.get(pk=endless.pk).status == "approved"
