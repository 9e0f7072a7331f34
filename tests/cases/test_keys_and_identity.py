"""Public reports in which one key was mistaken for another: A-5, B-4 and B-5."""

from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from approvals.services import AUTHORITY
from operations.connectors.registry import CONNECTORS
from operations.dispatch import depart, loaded
from operations.models import Attempt, Finding, Operation
from operations.reconcile import carry_on
from tests import factories
from tests.stage import LARGE, SMALL, operation

STRIPE = CONNECTORS["stripe"]


@pytest.fixture(autouse=True)
def _impatient(settings):
    settings.AGENTOPS_SEND_SECONDS = 1


def unknown(run) -> bool:
    return run.operations.filter(action="refund.create", status="unknown").exists()


@pytest.mark.case("A-5")
def test_the_key_that_stops_a_second_run_is_not_what_protects_the_payment(stage):
    """Two attempts of one run's body, with key support and without: one effect; the console shows what a lost answer costs."""
    reader = Client()
    reader.force_login(stage.reviewer())
    for support, words in ((True, "at most once and verifiable"), (False, "cannot be verified")):
        stage.provider.fault("ok")
        if not support:
            stage.provider.fault("no_key_support")
            with pytest.raises(CommandError, match="contradicts"):
                call_command("connector", "check", "stripe", stdout=StringIO())
        order, before = stage.order(), stage.provider.books()["calls"]
        stage.provider.fault("commit_then_drop", times=1, door="payments")
        text, key = f"My order {order['id']} arrived damaged, please refund it.", f"pay-{support}"
        run = stage.start(text, dedupe_key=key)
        assert stage.start(text, dedupe_key=key) == run
        stage.carry_on(run, unknown)
        stage.rest()  # the first attempt of the body is over; the second one is another worker's
        run = stage.as_time_passes(run, speed=5)
        made = operation(run)
        assert (run.status, made.status, len(stage.refunds(order))) == ("completed", "succeeded", 1)
        assert Attempt.objects.filter(operation=made).count() == 1
        assert stage.provider.books()["calls"] == before + 1
        sources = Finding.objects.filter(operation=made).order_by("number").values_list("source", flat=True)
        assert list(sources)[:2] == ["answer", "look_up"]
        assert words in reader.get(f"/admin/operations/{made.public_id}/").content.decode()
        assert words in reader.get("/admin/operations/").content.decode()
        stage.rest()
    # Where nothing is found either, nothing is sent a second time without keys: a person finds out.
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    order = stage.order()
    run = stage.as_time_passes(
        stage.ask_refund(order), lambda row: row.operations.filter(status="escalated").exists(), speed=10
    )
    assert (operation(run).error_code, stage.refunds(order)) == ("keys_not_proved", [])


@pytest.mark.case("B-4")
def test_not_found_within_the_declared_lag_is_no_proof_and_after_it_the_effect_is_found(stage, monkeypatch):
    monkeypatch.setattr(type(STRIPE), "abilities", replace(STRIPE.abilities, look_up_lag_seconds=120))
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    before = stage.provider.books()["calls"]
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    stage.provider.fault("lookup_lag", seconds=120)
    STRIPE.send(
        departure.call, departure.request, lambda: None
    )  # F2: committed there, and the worker is dead
    for _ in range(5):
        stage.move_clock(22)
        assert carry_on(approval.operation_id, AUTHORITY, worker="test").status == "unknown"
    looked = Finding.objects.filter(operation_id=approval.operation_id, source="look_up")
    assert set(looked.values_list("verdict", flat=True)) == {"absent"}
    assert stage.provider.books()["calls"] == before + 1
    stage.provider.fault("lookup_lag", seconds=0)  # the two minutes are over at the provider as well
    stage.move_clock(22)
    made = carry_on(approval.operation_id, AUTHORITY, worker="test")
    assert (made.status, made.attempts) == ("succeeded", 1)
    assert stage.provider.books()["calls"] == before + 1


@pytest.mark.case("B-5")
def test_a_request_delivered_three_times_is_one_refund_and_two_honest_requests_are_two(stage, test_agent):
    order = stage.order(LARGE)
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    tickets = iter(["ticket-1", "ticket-1", "ticket-1", "ticket-2", "ticket-3"])

    def refund(ctx):
        params = {
            "charge": order["charge"], "order": order["id"], "line": f"{order['id']}-1", "amount_minor": SMALL,
            "currency": "EUR", "reason": "damaged",
        }  # fmt: skip
        return ctx.operation(
            "refund.create", target=f"order:{order['id']}", params=params, reference=ctx.step("ticket", lambda _: next(tickets))
        ).provider_ref  # fmt: skip

    agent = test_agent(refund, proposes="refund.create")
    for _ in range(3):
        stage.carry_on(stage.start("ticket-1", agent))
    assert len(stage.refunds(order)) == 1
    for _ in range(2):  # the soft guard on the target asks a person about each, who sees the ones before
        approval = stage.until_asked(stage.start("another ticket", agent))
        stage.decide(approval, stage.reviewer())
        stage.carry_on(approval.operation.run)
    assert len(stage.refunds(order)) == 3
    made = Operation.objects.filter(action="refund.create").order_by("id")
    assert [each.reference for each in made] == ["ticket-1", "ticket-2", "ticket-3"]
    assert len({each.idempotency_key for each in made}) == 3
