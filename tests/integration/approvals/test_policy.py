"""Policy: the first rule that matches decides; what cannot be evaluated denies; a second one on a target asks."""

import json

import pytest

from agentops.tenancy import vault
from approvals import queries
from approvals.models import PolicyDecision
from approvals.policy import input_place
from approvals.services import AUTHORITY
from operations.connectors.registry import ACTIONS
from operations.dispatch import dispatch
from operations.models import Connection
from operations.states import OperationStatus
from runs.models import AgentRun
from tests import factories, proposals
from tests.stage import LARGE, SMALL, answer, operation, sql


def rule(outcome, when="true", **more):
    return {"code": f"it.{outcome}", "when": when, "outcome": outcome, **more}


def test_the_first_match_decides_and_is_remembered(stage):
    made = factories.policy(stage.tenant, "refund.create", [rule("allow"), rule("deny")])
    run = stage.carry_on(stage.ask_refund(stage.order(LARGE)))
    decision = PolicyDecision.objects.get(operation=operation(run))
    assert (decision.policy, decision.rule, decision.outcome) == (made, "it.allow", "allow")
    assert operation(run).authority_id == decision.id


@pytest.mark.parametrize("when", ["operation.nothing > 1", "1 / 0 == 1", "operation.amount_minor", "(("])
def test_what_cannot_be_evaluated_denies(stage, when):
    order = stage.order()
    factories.policy(stage.tenant, "refund.create", [rule("allow", when)])
    run = stage.carry_on(stage.ask_refund(order))
    assert operation(run).status == OperationStatus.REJECTED
    assert operation(run).error_code == "policy_error"
    assert stage.refunds(order) == []


def test_without_a_rule_or_a_policy_a_person_decides(stage):
    factories.policy(stage.tenant, "refund.create", [rule("allow", "false")])
    approval = stage.until_asked(stage.ask_refund(stage.order()))
    assert approval.policy_decision.codes == ["no_rule"]
    sql("ALTER TABLE approvals_policy DISABLE TRIGGER USER")
    stage.tenant.policies.filter(action="order.cancel").delete()
    sql("ALTER TABLE approvals_policy ENABLE TRIGGER USER")
    approval = stage.until_asked(stage.ask_cancel(stage.order()))
    assert approval.policy_decision.codes == ["no_policy"]


def test_an_unpublished_version_decides_nothing(stage):
    factories.policy(stage.tenant, "refund.create", [rule("deny")], published_at=None)
    order = stage.order()
    stage.carry_on(stage.ask_refund(order))
    assert len(stage.refunds(order)) == 1


def test_a_second_refund_on_an_order_asks_a_person_with_the_first_on_the_sheet(stage):
    order = stage.order()
    first = stage.carry_on(stage.start(f"Refund 10 EUR of order {order['id']}, it is damaged."))
    assert first.status == "completed"
    run = stage.start(f"Refund 5 EUR of order {order['id']}, it is damaged.")
    approval = stage.until_asked(run)
    (warning,) = queries.proposal(approval)["warnings"]
    assert warning["operation_id"] == operation(first).public_id
    assert warning["amount_minor"] == 1_000
    stage.decide(approval, stage.reviewer())
    stage.carry_on(run)
    assert sorted(each["amount"] for each in stage.refunds(order)) == [500, 1_000]
    assert SMALL > 1_500


def test_a_denial_without_a_sentence_still_reaches_the_answer(stage):
    factories.policy(stage.tenant, "refund.create", [rule("deny")])
    run = stage.carry_on(stage.ask_refund(stage.order()))
    assert run.status == "completed"
    assert "it.deny" in answer(run).replace("it deny", "it.deny")


def test_a_denial_tells_the_customer_the_tenants_own_sentence_with_its_values(stage):
    denial = rule(
        "deny", params={"most_minor": 200_000, "desk": "finance"}, sentences={"en": "At most {most_minor}; ask {desk}."}
    )  # fmt: skip
    factories.policy(stage.tenant, "refund.create", [denial])
    run = stage.carry_on(stage.ask_refund(stage.order()))
    assert "At most €2,000.00; ask finance." in answer(run)


def test_a_log_only_version_decides_nothing_and_records_what_it_would_have_decided(stage):
    silent = factories.policy(stage.tenant, "refund.create", [rule("deny")], log_only=True)
    order = stage.order()
    run = stage.carry_on(stage.ask_refund(order))
    assert len(stage.refunds(order)) == 1
    decided = PolicyDecision.objects.filter(operation=operation(run)).order_by("log_only", "id")
    assert [(each.outcome, each.log_only, each.policy == silent) for each in decided] == [
        ("allow", False, False),
        ("deny", True, True),
    ]
    assert operation(run).authority_id == decided[0].id
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)  # a newer one in force ends it
    other = stage.carry_on(stage.ask_refund(stage.order()))
    assert not PolicyDecision.objects.filter(operation=operation(other), log_only=True).exists()


@pytest.mark.django_db
def test_a_version_whose_row_was_altered_denies_and_one_that_only_records_disturbs_nobody():
    tenant = proposals.shop()
    silent = factories.policy(
        tenant, "refund.create", [rule("deny", "history.tenant.today.count > 1")], log_only=True
    )
    rules = json.dumps([rule("allow", "history.customer.today.count < 9", code="it.altered")])
    sql("SET LOCAL session_replication_role = replica")  # as an owner of the database could
    sql("UPDATE approvals_policy SET rules = %s WHERE id = %s", rules, silent.pk)
    run = factories.run(tenant)
    assert proposals.refund(run, amount_minor=2_000).status == "approved"
    decisions = PolicyDecision.objects.values_list("outcome", "rule", "log_only")
    assert set(decisions) == {("allow", "refund.small", False), ("deny", "policy_error", True)}
    sql(
        "UPDATE approvals_policy SET rules = %s, digest = 'c1:policy:0' WHERE action = 'refund.create'", rules
    )
    refused = proposals.refund(run, order="A-2", amount_minor=2_000)
    assert (refused.status, refused.error_code) == ("rejected", "policy_error")


def test_by_the_time_of_sending_a_rule_that_lowers_denies_and_every_look_is_on_record(stage):
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.rest()
    stage.decide(approval, stage.reviewer())
    factories.policy(stage.tenant, "refund.create", [rule("allow", clamp={"amount_minor": LARGE - 1})])
    dispatch(approval.operation_id, AUTHORITY, worker="test")
    row = operation(run)
    assert (row.status, row.error_code) == (OperationStatus.REJECTED, "policy_lowers")
    assert stage.refunds(order) == []
    looks = PolicyDecision.objects.filter(operation=row).order_by("id")
    assert [(each.outcome, each.codes[-1], bool(each.sealed_input)) for each in looks] == [
        ("require_approval", "refund.over_limit", True),
        ("deny", "it.allow", False),
    ]


def test_rules_may_speak_of_exactly_the_facts_that_connectors_read(stage):
    stage.carry_on(stage.ask_refund(stage.order()))
    stage.until_asked(stage.ask_cancel(stage.order()))
    read = {}
    for decision in PolicyDecision.objects.exclude(sealed_input=None):
        seen = vault.unseal(input_place(decision), bytes(decision.sealed_input))
        facts = {
            path.partition(".")[2]: type(value) for path, value in seen.items() if path.startswith("target.")
        }
        read[seen["operation.action"]] = facts
    assert read == {name: ACTIONS[name].facts for name in ("refund.create", "mail.send", "order.cancel")}


@pytest.mark.django_db
def test_a_question_is_put_as_its_rule_says(settings):
    settings.AGENTOPS_HOLD_SECONDS = 5
    tenant = proposals.shop()
    given = {
        "risk": "high", "group": "lead", "required": 2, "hold_seconds": 60, "expires_hours": None,
        "params": {"limit_minor": 5_000}, "sentences": {"en": "Above {limit_minor}.", "zh": "超过 {limit_minor}。"},
    }  # fmt: skip
    factories.policy(tenant, "refund.create", [rule("require_approval", **given)])
    approval = proposals.asked(factories.run(tenant))
    assert (approval.risk, approval.group, approval.required, approval.hold_seconds) == (
        "high",
        "lead",
        2,
        60,
    )
    assert approval.expires_at is None
    (reason,) = queries.proposal(approval)["reasons"]
    said = {"en": "Above €50.00.", "zh": "超过 €50.00。"}
    assert reason == {"code": "it.require_approval", "params": {"limit_minor": 5_000}, "sentence": said}
    factories.policy(tenant, "refund.create", [rule("require_approval", expires_hours=2)])
    approval = proposals.asked(factories.run(tenant), order="A-2")
    assert (approval.risk, approval.required, approval.hold_seconds) == ("elevated", 1, 5)
    assert (approval.expires_at - approval.requested_at).total_seconds() == pytest.approx(7_200, abs=5)


@pytest.mark.django_db
@pytest.mark.case("J-8")
def test_what_a_rule_permits_one_agent_of_one_tenant_over_one_connection_covers_nobody_else():
    """Standing authority does not exist yet; a rule is what permits for good, and it holds within what it names."""
    permits = rule(
        "allow",
        when='run.agent == "support-agent" && !run.is_child && operation.connection == "stripe"',
        code="it.permits",
    )
    tenant, other = proposals.shop(), proposals.shop()
    factories.policy(tenant, "refund.create", [permits])
    factories.policy(other, "refund.create", [rule("deny")])
    own = factories.run(tenant)
    child = factories.run(tenant)
    AgentRun.objects.filter(pk=child.pk).update(parent=own)
    child.refresh_from_db()
    asked = {
        "own": own,
        "another agent": factories.run(tenant, name="assistant"),
        "a sub-agent": child,
        "another tenant": factories.run(other),
    }
    stands = {who: proposals.refund(run, order=f"A-{n}").status for n, (who, run) in enumerate(asked.items())}
    assert stands == {
        "own": "approved",
        "another agent": "pending",
        "a sub-agent": "pending",
        "another tenant": "rejected",
    }
    Connection.objects.filter(tenant=tenant, name="stripe").update(name="shop-b")
    assert proposals.refund(own, order="A-9").status == "pending"
