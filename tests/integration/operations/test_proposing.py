"""Proposing: one intent is one operation, whoever proposes it again; what is promised is counted under one lock."""

import pytest

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from operations.grades import reliance
from operations.models import Interest, Operation
from operations.states import OperationStatus
from operations.targets import remaining_minor
from tests import factories
from tests.stage import LARGE, SMALL, answer, operation, together


def test_two_runs_about_one_order_have_one_intent_and_one_refund(stage):
    order = stage.order(LARGE)
    runs = [stage.ask_refund(order), stage.ask_refund(order)]
    approvals = {stage.until_asked(run) for run in runs}
    (approval,) = approvals
    stage.decide(approval, stage.reviewer())
    runs = [stage.carry_on(run) for run in runs]
    (made,) = Operation.objects.filter(action="refund.create")
    assert [run.status for run in runs] == ["completed", "completed"]
    assert len(stage.refunds(order)) == 1
    assert all(made.provider_ref in answer(run) for run in runs)
    assert set(Interest.objects.filter(operation=made).values_list("run_id", flat=True)) == {
        run.id for run in runs
    }
    assert len(stage.mails()) == 1


def test_two_runs_that_propose_in_the_same_moment_have_one_refund(stage):
    order = stage.order()
    stage.driver(), stage.driver()
    runs = together(*[lambda: stage.ask_refund(order)] * 4)
    runs = [stage.carry_on(run) for run in runs]
    assert [run.status for run in runs] == ["completed"] * 4
    assert len(stage.refunds(order)) == 1
    assert Operation.objects.filter(action="refund.create").count() == 1


def test_what_has_succeeded_is_answered_with_its_receipt(stage):
    order = stage.order()
    first = stage.carry_on(stage.ask_refund(order))
    again = stage.carry_on(stage.ask_refund(order))
    assert operation(again) == operation(first)
    assert operation(first).provider_ref in answer(again)
    assert len(stage.refunds(order)) == 1


def test_what_was_rejected_opens_the_next_occurrence_for_a_new_run_after_the_cool_down(stage):
    order = stage.order(LARGE)
    first = stage.ask_refund(order)
    stage.decide(stage.until_asked(first), stage.reviewer(), "reject")
    first = stage.carry_on(first)
    stage.move_clock(24 * 3600 + 60)
    again = stage.ask_refund(order)
    stage.decide(stage.until_asked(again), stage.reviewer())
    stage.carry_on(again)
    assert [each.occurrence for each in Operation.objects.filter(action="refund.create").order_by("id")] == [
        0,
        1,
    ]
    assert operation(again).previous == operation(first)
    assert operation(again).idempotency_key != operation(first).idempotency_key
    assert len(stage.refunds(order)) == 1


def test_a_run_that_joined_is_told_when_the_other_one_is_cancelled(stage):
    order = stage.order(LARGE)
    owner = stage.ask_refund(order)
    stage.until_asked(owner)
    joined = stage.ask_refund(order)
    stage.until_asked(joined)
    cancel_run(stage.tenant.id, owner.id, actor=SYSTEM, reason="Called off.")
    joined = stage.carry_on(joined)
    assert joined.status == "completed"
    assert operation(joined).status == OperationStatus.CANCELLED
    assert stage.refunds(order) == []


def test_cancelling_a_run_that_only_joined_leaves_the_others_operation_alone(stage):
    order = stage.order(LARGE)
    owner = stage.ask_refund(order)
    approval = stage.until_asked(owner)
    joined = stage.ask_refund(order)
    stage.until_asked(joined)
    receipt = cancel_run(stage.tenant.id, joined.id, actor=SYSTEM, reason="Called off.")
    assert receipt.run.status == "cancelled"
    stage.decide(approval, stage.reviewer())
    stage.carry_on(owner)
    assert len(stage.refunds(order)) == 1


def test_of_two_refunds_over_what_was_captured_only_one_is_promised(stage):
    """Both wait; two people approve at the same moment: the target's lock lets one of them through."""
    from agentops.kernel.problems import Conflict
    from approvals.models import Approval

    order = stage.order(LARGE)
    runs = [stage.start(f"Refund {amount} EUR of order {order['id']}, damaged.") for amount in (80, 90)]
    approvals = [stage.until_asked(run) for run in runs]
    stage.rest()
    people = [stage.reviewer(), stage.reviewer()]
    outcomes = together(*(lambda a=a, p=p: stage.decide(a, p) for a, p in zip(approvals, people)))
    assert sorted(type(each).__name__ for each in outcomes) == ["Approval", "Conflict"]
    (lost,) = [each for each in outcomes if isinstance(each, Conflict)]
    assert lost.code == "over_remaining"
    won = next(each for each in outcomes if isinstance(each, Approval))
    other = next(each for each in approvals if each.pk != won.pk)
    run = stage.carry_on(won.operation.run)
    assert len(stage.refunds(order)) == 1
    other.refresh_from_db()
    assert (other.status, other.decisions.count()) == ("requested", 0)
    stage.decide(other, stage.reviewer(), "reject")
    assert run.status == "completed"


def test_two_allowed_refunds_at_once_never_exceed_what_was_captured(stage):
    """The softer guard asks a person of whichever comes second; the money itself is guarded by the lock alone."""
    order = stage.order(5_000)
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    stage.driver(), stage.driver()
    texts = [f"Refund {amount} EUR of order {order['id']}, damaged." for amount in (30, 35, 40)]
    runs = together(*(lambda text=text: stage.start(text) for text in texts))
    for run in runs:
        stage.carry_on(run, lambda row: row.is_terminal or row.status == "waiting_for_approval")
    assert sum(each["amount"] for each in stage.refunds(order)) <= 5_000
    target = Operation.objects.filter(action="refund.create").first().target
    assert remaining_minor(target, but=target.id) >= 0


def test_money_of_an_operation_in_doubt_stays_promised(stage):
    order = stage.order(LARGE)
    stage.provider.fault("commit_then_drop", times=1)
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    run = stage.ask_refund(order)
    stage.carry_on(run, lambda row: row.operations.filter(status="unknown").exists())
    stage.rest()
    target = operation(run).target
    assert remaining_minor(target, but=target.id) == 0


def test_what_is_proposed_goes_to_the_live_account_and_not_to_its_tested_twin(stage):
    live = factories.connection(
        stage.tenant, "stripe", stage.provider.payments_url, name="live", mode="live", grade=""
    )
    made = operation(stage.carry_on(stage.ask_refund(stage.order())))
    assert made.connection_id == live.id
    assert reliance(live).keys  # by the twin's proofs


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"amount_minor": 0}, "invalid_params"),
        ({"amount_minor": 12.5}, "invalid_params"),
        ({"currency": "eur"}, "invalid_params"),
        ({"charge": "re_1"}, "invalid_params"),
        ({"more": 1}, "invalid_params"),
    ],
)
def test_what_does_not_fit_the_schema_is_told_and_nothing_is_recorded(stage, params, code):
    from agentops.sdk.errors import Terminal
    from operations.services import intend

    order = stage.order()
    fitting = {
        "charge": order["charge"], "order": order["id"], "line": "1", "amount_minor": SMALL, "currency": "EUR",
        "reason": "damaged",
    }  # fmt: skip
    run = stage.ask_refund(order)
    with pytest.raises(Terminal) as refused:
        intend(run, "refund.create", target=f"order:{order['id']}", params=fitting | params, reference="1")
    assert refused.value.code == code


def test_what_rests_on_a_broken_guard_is_refused_with_the_fact(stage):
    """The order is cancelled already: nobody is asked for what could not be sent."""
    order = stage.order()
    first = stage.ask_cancel(order)
    stage.decide(stage.until_asked(first), stage.reviewer())
    stage.carry_on(first)
    again = factories.run(
        factories.principal(stage.tenant),
        f"Cancel order {order['id']}.",
        actor=f"customer:{order['customer']}",
    )
    again = stage.carry_on(again)
    refused = operation(again, "order.cancel")
    assert (refused.status, refused.error_code) == ("rejected", "guard_broken:is_cancelled")
    assert again.status == "completed"
    assert len(stage.cancellations(order)) == 1
