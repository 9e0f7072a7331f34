"""A tool that asks people twice goes on behind the first answer: what it did before is read back, not done again."""

import pytest

from approvals.models import Approval
from tests import factories
from tests.stage import answer, eventually


@pytest.mark.case("A-4")
def test_the_answer_to_the_first_of_two_questions_repeats_nothing(stage, test_agent):
    """A ticket note, then a question, then another: one note, and each order is cancelled once."""
    notes, lives = [], []
    first, second = stage.order(), stage.order()

    def write(step):
        notes.append(step.id)
        return "noted"

    def work(ctx):
        lives.append(1)
        ctx.step("ticket-note", write)
        for order in (first, second):
            target = f"order:{order['id']}"
            ctx.operation(
                "order.cancel",
                target=target,
                params={"order": order["id"], "reason": "other"},
                reference=order["id"],
                key=order["id"],
            )
        return "both"

    factories.policy(stage.tenant, "order.cancel", factories.ASK)
    person = stage.reviewer()
    run = stage.start("x", test_agent(work, proposes="order.cancel"))
    asked = stage.until_asked(run)
    assert asked.operation.target_text == f"order:{first['id']}"
    stage.decide(asked, person)
    eventually(lambda: stage.cancellations(first), "the first is cancelled")
    asked = eventually(lambda: Approval.objects.filter(status="requested").first(), "it asks again")
    stage.carry_on(run, lambda row: row.status == "waiting_for_approval")
    assert (len(notes), len(stage.cancellations(first)), stage.cancellations(second)) == (1, 1, [])
    stage.decide(asked, person)
    assert answer(stage.carry_on(run)) == "both"
    assert notes == [f"{run.public_id}/turn-1/call-0/ticket-note"]
    assert [len(stage.cancellations(order)) for order in (first, second)] == [1, 1]
    assert len(lives) >= 3
