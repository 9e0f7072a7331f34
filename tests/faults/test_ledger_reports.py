"""What others have reported of ledgers like this one, and the experiment of the literature, each as it was written.

A retried turn without a ledger is played here as a few lines against the same provider: it pays twice, ours once.
"""

from uuid import uuid4

import httpx
import pytest
from django.test import Client

from agentops.kernel.ids import parse
from agentops.tenancy.principals import SCOPES
from operations import queries
from operations.connectors.stripe.refunds import key_digest
from operations.models import Attempt, Finding
from operations.states import OperationStatus as S
from runs.models import AgentRun
from tests import factories
from tests.ledger import REFUNDED, Crash
from tests.provider import STRIPE_KEY

MINUTE = 60


def mails(settings) -> int:
    return len(list(settings.AGENTOPS_MAIL_DIR.glob("*.eml")))


@pytest.mark.case("A-2")
def test_an_effect_whose_recording_was_lost_is_recorded_and_not_done_again(ledger, settings):
    """The provider's answer is in memory (F3), or half written (F4), when the worker is gone: for money and for a mail."""
    for point in ("F3", "F4"):
        order, run, before = ledger.order(), ledger.run(), mails(settings)
        with ledger.crashing(point):
            ledger.ask(run, order)
        ledger.ask(run, order, owner="successor")
        made = ledger.settle(*ledger.operations(order))
        assert ledger.ask(run, order, owner="successor").provider_ref == made.provider_ref
        with ledger.crashing(point):
            ledger.mail(run, order, made.provider_ref)
        mail = run.operations.get(action="mail.send")
        assert mails(settings) == before + 1
        assert mail.status == S.EXECUTING, "nothing was recorded"
        mail = ledger.settle(mail)
        assert mail.status == S.SUCCEEDED
        assert ledger.mail(run, order, made.provider_ref).provider_ref == mail.provider_ref
        assert (len(ledger.refunds(order)), mails(settings)) == (1, before + 1)


@pytest.mark.case("B-1")
def test_an_error_path_destroys_neither_the_row_nor_its_key(ledger):
    order, run, before = ledger.order(), ledger.run(), ledger.provider.books()["calls"]
    ledger.provider.fault("commit_then_drop", times=1, door="payments")
    ledger.ask(run, order)
    (made,) = ledger.operations(order)
    key = made.idempotency_key
    assert (made.status, made.in_doubt) == (S.UNKNOWN, True)
    for _ in range(3):  # whoever comes to it, now or later, in this run or in another one
        ledger.ask(run, order)
        ledger.ask(ledger.run(), order)
    made = ledger.settle(made)
    assert (made.status, made.idempotency_key) == (S.SUCCEEDED, key)
    assert ledger.operations(order) == [made]
    (refund,) = ledger.refunds(order)
    assert refund["idempotency_key"] == key
    assert ledger.provider.books()["calls"] == before + 1


@pytest.mark.case("B-2")
def test_a_lost_answer_is_found_by_our_own_id_and_a_second_request_is_the_first_one_again(ledger):
    order, before = ledger.order(), ledger.provider.books()["calls"]
    with ledger.crashing("F2"):
        ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    (refund,) = ledger.refunds(order)
    assert refund["operation_id"] == made.public_id
    assert refund["key_digest"] == key_digest(made.idempotency_key)
    made = ledger.settle(made)
    assert (made.status, made.attempts) == (S.SUCCEEDED, 1)
    assert queries.receipt(made)["found_by"] == "look_up"
    assert ledger.provider.books()["calls"] == before + 1

    order = ledger.order()
    ledger.provider.fault("drop_before_commit", times=1, door="payments")
    ledger.ask(ledger.run(), order)
    made = ledger.settle(*ledger.operations(order))
    first, second = Attempt.objects.filter(operation=made).order_by("number")
    assert (made.status, len(ledger.refunds(order))) == (S.SUCCEEDED, 1)
    assert (first.request_digest, first.idempotency_key) == (second.request_digest, second.idempotency_key)


@pytest.mark.case("B-3")
def test_a_lost_answer_is_never_frozen_as_a_failure_not_even_for_whoever_repeats_the_request(ledger):
    order = ledger.order()
    token = factories.token(ledger.tenant, *(scope for scope in SCOPES if scope != "approvals:decide"))

    def post():
        body = {"agent": "support-agent", "input": f"Refund order {order['id']}."}
        signed = {"Authorization": f"Bearer {token}", "Idempotency-Key": "once"}
        return Client().post("/v1/runs", body, content_type="application/json", headers=signed)

    def statuses():
        answer = Client().get(first.json()["status_url"], headers={"Authorization": f"Bearer {token}"}).json()
        return [each["status"] for each in answer["operations"]]

    first = post()
    run = AgentRun.objects.get(pk=parse("run", first.json()["run_id"]))
    ledger.provider.fault("commit_then_500", times=1, door="payments")
    ledger.ask(run, order)
    (made,) = ledger.operations(order)
    for pause in (0, MINUTE, 60 * MINUTE):
        ledger.move_clock(pause)
        again = post()
        assert (again.status_code, again.json()["run_id"]) == (201, first.json()["run_id"])
        assert again["Run-Status"] == "running"
        assert statuses() == ["unknown"]
    ledger.settle(made)
    assert post()["Run-Status"] == "running"
    assert statuses() == ["succeeded"]
    assert [each.verdict for each in Finding.objects.filter(operation=made)] == ["unknown", "applied"]
    assert len(ledger.refunds(order)) == 1


class Naive:
    """The whole turn as one function that is retried until it returns: durable execution as it is usually sold."""

    def __init__(self, ledger) -> None:
        self.ledger, self.journal = ledger, {}

    def turn(self, order) -> str:
        key = str(uuid4())  # made by the turn, as everything of it
        answer = httpx.post(
            f"{self.ledger.provider.payments_url}/v1/refunds",
            data={"charge": order["charge"], "amount": str(REFUNDED)},
            headers={"Authorization": f"Bearer {STRIPE_KEY}", "Idempotency-Key": key},
            trust_env=False,
        )
        self.ledger.dies("after the answer")
        return f"Refunded: {answer.json()['id']}"

    def run(self, order) -> str:
        for _ in range(3):
            try:
                return self.journal.setdefault("turn", self.turn(order))
            except Crash:
                continue
        raise AssertionError("it never ended")


def test_a_retried_turn_pays_twice_where_the_ledger_pays_once(ledger):
    """The worker dies once, between the provider's answer and the record of it."""
    deaths = []

    def dies(place: str) -> None:
        if not deaths:
            deaths.append(place)
            raise Crash

    ledger.dies = dies
    naive, ours = ledger.order(), ledger.order()
    Naive(ledger).run(naive)
    assert len(ledger.refunds(naive)) == 2, "the provider takes it twice, as it was told"
    run = ledger.run()
    with ledger.crashing("F3"):
        ledger.ask(run, ours)
    ledger.ask(run, ours, owner="whoever retries the turn")
    ledger.settle(*ledger.operations(ours))
    receipt = ledger.ask(run, ours, owner="whoever retries the turn")
    (refund,) = ledger.refunds(ours)
    assert receipt.provider_ref == refund["id"]
