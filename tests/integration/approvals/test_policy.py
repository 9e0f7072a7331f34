"""Policy: the first rule that matches decides; what cannot be evaluated denies; a second one on a target asks."""

import pytest

from approvals.models import PolicyDecision
from approvals.policy import lint
from operations.states import OperationStatus
from tests import factories
from tests.stage import LARGE, SMALL, answer, operation


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
    stage.tenant.policies.filter(action="order.cancel").delete()
    approval = stage.until_asked(stage.ask_cancel(stage.order()))
    assert approval.policy_decision.codes == ["no_policy"]


def test_an_unpublished_version_decides_nothing(stage):
    draft = factories.policy(stage.tenant, "refund.create", [rule("deny")])
    draft.published_at = None
    draft.save()
    order = stage.order()
    stage.carry_on(stage.ask_refund(order))
    assert len(stage.refunds(order)) == 1


def test_a_second_refund_on_an_order_asks_a_person_with_the_first_on_the_sheet(stage):
    from approvals import queries

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


def test_faulty_rules_are_named_before_they_are_published():
    assert lint([rule("allow")]) == []
    assert lint("x") == ["rules must be a list"]
    faults = lint([rule("perhaps"), rule("allow", "(("), {"when": "true"}])
    assert [fault.split(":")[0] for fault in faults] == ["rule 1", "rule 2", "rule 3"]
