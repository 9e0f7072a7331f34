"""The story on real parts: what policy allows, what a person decides, what is denied, what is only asked."""

from agentops.kernel.ids import parse
from operations import queries
from operations.states import OperationStatus
from runs.models import AgentRun, Step
from runs.states import RunStatus
from tests.stage import CEILING, LARGE, answer, operation, story, types


def test_a_small_refund_is_sent_by_policy_and_its_receipt_reaches_the_customer(stage):
    order = stage.order()
    run = stage.carry_on(stage.ask_refund(order))
    assert run.status == RunStatus.COMPLETED
    (refund,) = stage.refunds(order)
    made = operation(run)
    assert (refund["amount"], refund["operation_id"]) == (order["amount_minor"], made.public_id)
    assert made.status == OperationStatus.SUCCEEDED
    assert queries.receipt(made)["id"] == refund["id"]
    assert refund["id"] in answer(run)
    (mail,) = stage.mails()
    assert mail.stem == operation(run, "mail.send").idempotency_key
    assert types(run)[0] == "run.created"
    assert types(run)[-1] == "run.completed"


def test_a_larger_refund_waits_for_a_person_and_is_then_sent_once(stage):
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    assert stage.refunds(order) == []
    assert AgentRun.objects.get(pk=run.pk).blocked_on == ["approval"]
    stage.decide(approval, stage.reviewer())
    run = stage.carry_on(run)
    assert run.status == RunStatus.COMPLETED
    assert [each["amount"] for each in stage.refunds(order)] == [LARGE]
    approval.refresh_from_db()
    assert approval.consumed_by == operation(run).id
    assert approval.consumed_at is not None
    decided = next(data for type, data in story(run) if type == "approval.decided")
    assert decided["status"] == "approved"
    assert parse("apr", decided["approval_id"]) == approval.id


def test_a_refund_above_the_ceiling_is_denied_and_the_sentence_reaches_the_answer(stage):
    order = stage.order(CEILING)
    run = stage.carry_on(stage.ask_refund(order))
    assert run.status == RunStatus.COMPLETED
    assert operation(run).status == OperationStatus.REJECTED
    assert "Refunds above €2,000.00 are not made here" in answer(run)
    assert stage.refunds(order) == []


def test_a_cancellation_waits_for_a_person_and_is_made_once(stage):
    order = stage.order()
    run = stage.ask_cancel(order)
    stage.decide(stage.until_asked(run), stage.reviewer())
    run = stage.carry_on(run)
    assert run.status == RunStatus.COMPLETED
    (cancellation,) = stage.cancellations(order)
    assert cancellation["operation_id"] == operation(run, "order.cancel").public_id


def test_a_question_proposes_nothing(stage):
    order = stage.order()
    run = stage.carry_on(stage.start(f"Where is order {order['id']}?"))
    assert run.status == RunStatus.COMPLETED
    assert order["id"] in answer(run)
    assert not run.operations.exists()


def test_a_note_is_an_operation_that_policy_allows(stage):
    run = stage.carry_on(stage.start("Add a note: call back on Monday.", "assistant"))
    assert run.status == RunStatus.COMPLETED
    note = operation(run, "note.add")
    assert note.status == OperationStatus.SUCCEEDED
    notes = [
        each["text"] for each in stage.provider.books()["notes"] if each["operation_id"] == note.public_id
    ]
    assert notes == ["call back on Monday."]


def test_each_turn_is_asked_for_once_however_often_the_run_is_claimed(stage):
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    stage.decide(stage.until_asked(run), stage.reviewer())
    run = stage.carry_on(run)
    turns = [data["turn"] for type, data in story(run) if type == "assistant.message"]
    assert turns == [1, 2, 3, 4]
    models = Step.objects.filter(run_id=run.pk, kind="model")
    assert [each.attempt for each in models] == [1] * 4
