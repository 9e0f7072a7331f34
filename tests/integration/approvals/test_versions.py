"""A policy owner's way: a draft with its faults shown, tried on the past, published for good or only to record."""

import json
from dataclasses import replace

import pytest
from django.db import DatabaseError, connection, transaction

from agentops.audit.models import AuditEntry
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.tenancy import vault
from agentops.tenancy.models import Membership
from approvals.models import Policy, PolicyDecision
from approvals.policy import in_force
from approvals.rules import versions
from approvals.rules.trial import over_the_past
from operations.connectors.registry import ACTIONS
from tests import factories, proposals
from tests.integration.cli.test_run_command import refused, told
from tests.stage import together

pytestmark = pytest.mark.django_db
EUR = 'operation.currency == "EUR" && '
REFUND = "refund.create"


def rule(outcome="allow", when="true", **more):
    return {"code": f"it.{outcome}", "when": when, "outcome": outcome, **more}


@pytest.fixture
def acme():
    return proposals.shop("acme")


@pytest.fixture
def owner(acme):
    return factories.person(acme, Membership.Role.POLICY_OWNER, name="paula", each_minor=None)


def test_a_draft_is_checked_seen_published_once_and_never_changed_again(acme, owner):
    by = {"person": owner, "channel": "cli"}
    with pytest.raises(Invalid) as faulty:
        versions.save_draft(
            acme, REFUND, [rule(when="operation.amount_minor > 50.0"), rule("deny", "tru")], **by
        )
    assert [fault["pointer"] for fault in faulty.value.errors] == ["/rules/0/when", "/rules/1/when"]
    assert "line 1, column 26" in faulty.value.errors[0]["detail"]
    first = versions.save_draft(acme, REFUND, [rule()], **by)
    with pytest.raises(Conflict):  # somebody else's draft, that this person has not seen
        versions.save_draft(acme, REFUND, [rule("deny")], replacing="", **by)
    second = versions.save_draft(acme, REFUND, [rule("deny")], replacing=first.digest, **by)
    assert (second.pk, second.number) == (first.pk, 2)
    with pytest.raises(Conflict) as moved:
        versions.publish(acme, REFUND, digest=first.digest, **by)
    assert moved.value.code == "draft_moved"
    assert in_force(acme.id, REFUND)[0].number == 1
    done = versions.publish(acme, REFUND, digest=second.digest, **by)
    assert in_force(acme.id, REFUND) == (done, None)
    assert (done.published_by, done.number) == (f"user:{owner.pk}", 2)
    run_sql("SET CONSTRAINTS ALL IMMEDIATE")
    for change in (
        "UPDATE approvals_policy SET rules = '[]'",
        "DELETE FROM approvals_policy",
        "TRUNCATE approvals_policy CASCADE",
    ):
        with pytest.raises(DatabaseError, match="refused by rule"), transaction.atomic():
            run_sql(change)
    with pytest.raises(NotFound):
        versions.publish(acme, REFUND, digest=second.digest, **by)
    silent = versions.save_draft(acme, REFUND, [rule()], **by)
    silent = versions.publish(acme, REFUND, digest=silent.digest, log_only=True, **by)
    assert in_force(acme.id, REFUND) == (done, silent)
    versions.save_draft(acme, REFUND, [rule()], **by)
    versions.discard(acme, REFUND, **by)
    assert [
        (entry.verb, entry.actor) for entry in AuditEntry.objects.filter(object_type="policy").order_by("id")
    ] == [
        (f"policy.{verb}", f"user:{owner.pk}")
        for verb in ("drafted", "drafted", "published", "drafted", "published", "drafted", "discarded")
    ]


def test_a_draft_that_another_release_finds_faulty_is_not_published(acme, owner, monkeypatch):
    by = {"person": owner, "channel": "cli"}
    lowers = rule(when=f"{EUR}true", clamp={"amount_minor": 5_000})
    draft = versions.save_draft(acme, REFUND, [lowers], **by)
    monkeypatch.setitem(ACTIONS, REFUND, replace(ACTIONS[REFUND], adjustable=()))
    with pytest.raises(Invalid) as faulty:
        versions.publish(acme, REFUND, digest=draft.digest, **by)
    assert faulty.value.code == "faulty_rules"
    assert versions.draft_of(acme, REFUND) == draft


def run_sql(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_only_a_policy_owner_of_this_tenant_writes_policies(acme, owner):
    others = [factories.person(acme, role) for role in Membership.Role if role != "policy_owner"]
    others.append(factories.person(factories.tenant(), Membership.Role.POLICY_OWNER))
    draft = versions.save_draft(acme, REFUND, [rule()], person=owner, channel="cli")
    for person in others:
        by = {"person": person, "channel": "cli"}
        for act in (
            lambda: versions.save_draft(acme, REFUND, [rule()], **by),
            lambda: versions.publish(acme, REFUND, digest=draft.digest, **by),
            lambda: versions.discard(acme, REFUND, **by),
        ):
            with pytest.raises(NotYours):
                act()
    owner.is_active = False
    with pytest.raises(NotYours):
        versions.publish(acme, REFUND, digest=draft.digest, person=owner, channel="cli")


@pytest.mark.django_db(transaction=True)
def test_of_two_drafts_and_of_two_publications_at_once_one_stands(acme, owner):
    by = {"person": owner, "channel": "cli"}
    made = together(*[lambda: versions.save_draft(acme, REFUND, [rule()], replacing="", **by)] * 3)
    (draft,) = [each for each in made if isinstance(each, Policy)]
    assert [each.code for each in made if not isinstance(each, Policy)] == ["draft_moved"] * 2
    made = together(*[lambda: versions.publish(acme, REFUND, digest=draft.digest, **by)] * 3)
    assert sum(isinstance(each, Policy) for each in made) == 1
    assert {each.code for each in made if not isinstance(each, Policy)} <= {"draft_moved", "no_draft"}
    assert AuditEntry.objects.filter(verb="policy.published").count() == 1


def test_a_trial_lists_what_would_have_been_decided_otherwise_and_changes_nothing(acme, owner):
    run = factories.run(acme, actor="customer:C-1")
    small, asked, denied, mine = [
        proposals.refund(each, order=f"A-{n}", amount_minor=amount)
        for n, (amount, each) in enumerate(
            [(2_000, run), (18_900, run), (300_000, run), (3_000, factories.run(acme, actor="customer:C-2"))]
        )
    ]
    assert [small.status, asked.status, denied.status] == ["approved", "pending", "rejected"]
    draft = versions.save_draft(
        acme,
        REFUND,
        [
            rule("deny", "history.customer.last_24h.count >= 1", code="it.second"),
            rule("require_approval", EUR + "operation.amount_minor > 2500", code="it.lowers", clamp={"amount_minor": 2_500}),
            rule(),
        ],
        person=owner,
        channel="cli",
    )  # fmt: skip
    first = PolicyDecision.objects.get(operation=asked)
    looked_again = PolicyDecision(  # as after a reviewer has lowered it
        tenant=acme, operation=asked, outcome="require_approval", risk="high", codes=[], sealed_input=first.sealed_input
    )  # fmt: skip
    looked_again.save(force_insert=True)
    before = PolicyDecision.objects.count()
    found = over_the_past(draft)
    assert (found.looked_at, found.unreadable) == (4, 0)
    said = {
        each.operation.pk: (each.was.outcome, each.would.outcome, each.would.rule, each.would.amount_minor)
        for each in found.differences
    }
    assert said == {
        mine.pk: ("allow", "require_approval", "it.lowers", 2_500),  # `small` would be decided the same
        asked.pk: ("require_approval", "deny", "it.second", 18_900),
    }  # `denied` would be denied too, by another rule
    assert over_the_past(draft, limit=1).looked_at == 1
    assert PolicyDecision.objects.count() == before
    acme.data_keys.filter(pk=asked.data_key_id).update(wrapped=None, erased_at="2026-01-01T00:00:00Z")
    vault.forget()
    assert over_the_past(draft).unreadable == 3  # the customer of these is forgotten: nothing is guessed


def test_the_terminal_leads_from_a_file_to_a_published_version(acme, owner, tmp_path):
    file = tmp_path / "rules.json"
    words = ["--tenant", "acme", "--as", "paula"]
    file.write_text(json.dumps([rule(when="operation.amount_minor > 5000"), rule("deny", "x")]))
    code, said = refused("policy", "lint", REFUND, str(file), *words)
    assert code == 1
    assert said.splitlines()[0].startswith("rule 1, when, line 1, column 24: Of which currency?")
    assert said.splitlines()[1].startswith("rule 2, when, line 1, column 1: There is no x here")
    file.write_text("[{]")
    assert "line 1, column 3" in refused("policy", "draft", REFUND, str(file), *words)[1]
    file.write_text(json.dumps([rule("deny", EUR + "operation.amount_minor > 5000"), rule()]))
    proposals.refund(factories.run(acme), amount_minor=18_900)
    mark = told("policy", "draft", REFUND, str(file), *words).split()[-6].rstrip(".")
    assert "draft: v2" in told("policy", "show", *words)
    for count in ("-1", "9" * 20):
        assert "is no number" in refused("policy", "trial", REFUND, f"--limit={count}", *words)[1]
    tried = told("policy", "trial", REFUND, *words)
    assert "0 decided the same, 1 otherwise" in tried
    assert "require_approval €189.00 (refund.over_limit) → deny €189.00 (it.deny)" in tried
    assert refused("policy", "publish", REFUND, "0" * 12, *words)[0] == 1
    assert mark in tried
    assert "v2" in told("policy", "publish", REFUND, mark, *words)
    assert "operation.amount_minor > 5000" in told("policy", "show", REFUND, *words)
    assert refused("policy", "trial", REFUND, *words)[0] == 4
    factories.person(acme, name="rosa")
    assert refused("policy", "draft", REFUND, str(file), "--as", "rosa")[0] == 3
    assert "refund.create" in told("policy", "show", "--as", "rosa")


def test_a_value_that_is_null_is_another_rule_than_one_that_is_left_out(acme, owner):
    by = {"person": owner, "channel": "cli"}
    unending = versions.save_draft(acme, REFUND, [rule("require_approval", expires_hours=None)], **by)
    versions.publish(acme, REFUND, digest=unending.digest, **by)
    assert proposals.asked(factories.run(acme), order="A-1").expires_at is None
    seen = versions.save_draft(acme, REFUND, [rule("require_approval", expires_hours=None)], **by)
    other = versions.save_draft(acme, REFUND, [rule("require_approval")], **by)
    with pytest.raises(Conflict):
        versions.publish(acme, REFUND, digest=seen.digest, **by)
    versions.publish(acme, REFUND, digest=other.digest, **by)
    assert proposals.asked(factories.run(acme), order="A-2").expires_at is not None
