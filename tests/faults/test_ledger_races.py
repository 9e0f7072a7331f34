"""Several come to one operation at the same moment, each with a connection of its own: one effect, one story."""

import threading

import pytest

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from approvals.services import AUTHORITY
from operations.connectors.registry import CONNECTORS
from operations.dispatch import depart, dispatch, loaded, send
from operations.models import Attempt, Finding, Operation
from operations.reconcile import carry_on, due, reconcile
from operations.states import OperationStatus as S
from runs.models import AgentRun
from tests import factories
from tests.ledger import Ledger, assert_honest, assert_told
from tests.stage import together

pytestmark = pytest.mark.usefixtures("no_circle")
ROUNDS = 4
LEASE_SECONDS = 5 + 10 + 5 + 1


def allowed(ledger: Ledger) -> Operation:
    """Approved and due, nobody at work on it."""
    factories.policy(
        ledger.tenant, "refund.create", [{"code": "a", "when": "true", "outcome": "require_approval"}]
    )
    order = ledger.order()
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    ledger.approve(made)
    return loaded(made.id)


def judge(ledger: Ledger, made: Operation) -> list[dict]:
    made = loaded(made.id)
    books = ledger.refunds({"id": made.target_name})
    assert_honest(made, books)
    assert_told(made)
    return books


def test_many_bells_for_what_is_due_send_it_once(ledger):
    for _ in range(ROUNDS):
        made = allowed(ledger)
        assert made.id in due()
        outcomes = together(
            *[lambda made=made: [carry_on(each, AUTHORITY, worker="w") for each in due()]] * 4
        )
        assert not [each for each in outcomes if isinstance(each, Exception)], outcomes
        assert loaded(made.id).status == S.SUCCEEDED
        assert Attempt.objects.filter(operation=made).count() == 1
        assert len(judge(ledger, made)) == 1


def test_many_workers_at_one_lost_answer_send_it_again_once(ledger):
    for _ in range(ROUNDS):
        order = ledger.order()
        factories.policy(ledger.tenant, "refund.create", factories.ALWAYS)
        with ledger.crashing("F1"):
            ledger.ask(ledger.run(), order)
        (made,) = ledger.operations(order)
        for _ in range(3):
            ledger.move_clock(LEASE_SECONDS)
            together(*[lambda made=made: carry_on(made.id, AUTHORITY, worker="w")] * 4)
            if loaded(made.id).is_final:
                break
        assert loaded(made.id).status == S.SUCCEEDED
        assert Attempt.objects.filter(operation=made).count() == 2
        assert len(judge(ledger, made)) == 1


def test_a_cancel_meets_a_dispatch_and_tells_what_became_of_it(ledger):
    """Either nothing was sent and nothing ever will be, or it was, and the run ends once that is settled."""
    seen = set()
    for _ in range(2 * ROUNDS):
        made = allowed(ledger)
        receipt, _ = together(
            lambda made=made: cancel_run(ledger.tenant.id, made.run_id, actor=SYSTEM, reason="Called off."),
            lambda made=made: dispatch(made.id, AUTHORITY, worker="w"),
        )
        assert not isinstance(receipt, Exception), receipt
        ledger.settle(loaded(made.id))
        books, after = judge(ledger, made), loaded(made.id)
        outcome = receipt.effects[0].outcome
        seen.add(outcome)
        assert (outcome == "not_sent") == (books == []) == (after.status == S.CANCELLED)
        assert AgentRun.objects.get(pk=made.run_id).status == "cancelled"
    assert seen <= {"not_sent", "settled", "cannot_be_stopped"}


def test_the_reconciler_doubts_what_is_still_being_sent_and_both_come_to_one_outcome(ledger, monkeypatch):
    """The sender's lease ends while the provider thinks: the look-up and the late answer meet."""
    stripe = CONNECTORS["stripe"]
    real = stripe.send
    for _ in range(ROUNDS):
        made = allowed(ledger)
        departure = depart(made, AUTHORITY, worker="slow")
        has_sent, go_on = threading.Event(), threading.Event()

        def slow(*args, has_sent=has_sent, go_on=go_on):
            answer = real(*args)
            has_sent.set()
            go_on.wait(20)
            return answer

        monkeypatch.setattr(stripe, "send", slow)

        def doubt(made=made, has_sent=has_sent, go_on=go_on):
            has_sent.wait(20)
            ledger.move_clock(LEASE_SECONDS)
            go_on.set()
            return reconcile(made.id)

        outcomes = together(lambda departure=departure: send(departure), doubt)
        assert [each.status for each in outcomes if not isinstance(each, Exception)], outcomes
        assert loaded(made.id).status == S.SUCCEEDED
        assert Finding.objects.filter(operation=made, source="answer", verdict="applied").count() == 1
        assert len(judge(ledger, made)) == 1
