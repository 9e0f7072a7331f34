"""What a provider tells us by itself: believed where it is signed, taken once, and never older than what we know."""

import json
import time
from collections import Counter

import pytest
import stripe
from django.test import Client

from agentops.audit.entries import SYSTEM
from agentops.audit.models import AuditEntry
from approvals.services import AUTHORITY
from operations import hooks
from operations.connections import remove_credential
from operations.connectors.base import Answer
from operations.dispatch import depart, loaded, send
from operations.evidence import Evidence
from operations.findings import take
from operations.models import Connection, Finding, Hook, Incident, Unmatched
from operations.reconcile import look_up
from operations.states import Source, Verdict
from tests import factories
from tests.provider import STRIPE_KEY
from tests.stage import HOOK_SECRET, LARGE, SMALL, connect, operation, sql, together, types

client = Client()


@pytest.fixture
def account(stage):
    return Connection.objects.get(tenant=stage.tenant, connector="stripe")


def event(kind, thing, *, event_id=None, at=None):
    """An event as Stripe announces it, about a refund as the provider shows it."""
    made = {
        "id": event_id or f"evt_{time.monotonic_ns()}",
        "object": "event",
        "type": kind,
        "livemode": False,
    }
    return json.dumps(made | {"created": int(at or time.time()), "data": {"object": thing}})


def deliver(account, body, *, secret=HOOK_SECRET, at=None, header=None):
    signed = stripe.WebhookSignature.generate_signature_header(body, secret, int(at or time.time()))
    return client.post(
        f"/hooks/{account.public_id}",
        body,
        content_type="application/json; charset=utf-8",
        headers={"Stripe-Signature": signed if header is None else header},
    )


def shown(stage, order):
    """The refund of an order as the payments API shows it."""
    headers = {"Authorization": f"Bearer {STRIPE_KEY}"}
    (refund,) = stage.provider.door.get(
        "/v1/refunds", params={"charge": order["charge"]}, headers=headers
    ).json()["data"]
    return refund


@pytest.fixture
def lost(stage):
    """A refund that happened and whose answer was lost, nobody at work; (order, operation)."""
    order = stage.order(LARGE)
    approval = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    stage.provider.fault("commit_then_drop", times=1)
    assert send(departure).status == "unknown"
    return order, loaded(approval.operation_id)


def outcomes():
    return Counter(Hook.objects.values_list("outcome", flat=True))


def test_a_message_settles_what_was_unknown_and_a_repetition_changes_nothing(stage, account, lost):
    order, made = lost
    body = event("refund.created", shown(stage, order))
    answers = together(*[lambda: deliver(account, body)] * 4)
    assert {(each.status_code, each.json()["received"]) for each in answers} == {
        (200, json.loads(body)["id"])
    }
    made.refresh_from_db()
    assert (made.status, made.provider_ref) == ("succeeded", shown(stage, order)["id"])
    assert types(made.run).count("operation.succeeded") == 1
    assert deliver(account, body).status_code == 200
    assert Finding.objects.filter(operation_id=made.id, source="webhook").count() == 1
    assert outcomes() == {"taken": 1}
    assert look_up(made.id).status == "succeeded"
    assert not Incident.objects.filter(about=made.public_id).exists()


def test_what_is_not_signed_with_the_secret_of_this_connection_is_refused_and_noted(stage, account, lost):
    order, made = lost
    body = event("refund.created", shown(stage, order))
    good = stripe.WebhookSignature.generate_signature_header(body, HOOK_SECRET)
    deep = json.loads("[" * 900 + "]" * 900)
    refused = [
        deliver(account, body, secret="whsec_other"),
        deliver(account, body, header=""),
        deliver(account, body, header="t=1,v1=é"),
        deliver(account, body, header=good.replace("v1=", "v0=")),
        deliver(account, body, header=good.replace(",", "=3,", 1)),
        deliver(account, event("refund.created", {**shown(stage, order), "deep": deep})),
        deliver(account, body.replace("succeeded", "failed"), header=good),
        deliver(account, body.replace("evt_", "evt_2"), header=good),
        deliver(account, json.dumps({**json.loads(body), "id": None})),
        deliver(account, "[]"),
        deliver(account, "{"),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (401, "not_signed"), answer.content
        assert answer["Content-Type"] == "application/problem+json"
    noted = AuditEntry.objects.filter(verb="hook.refused", object_id=account.public_id)
    assert noted.count() == len(refused)
    assert all(entry.security for entry in noted)
    assert not Hook.objects.exists()
    assert loaded(made.id).status == "unknown"


def test_garbage_does_not_fill_the_record(stage, account, monkeypatch):
    monkeypatch.setattr(hooks, "REFUSALS_A_MINUTE", 2)
    assert {deliver(account, "{}").status_code for _ in range(5)} == {401}
    assert AuditEntry.objects.filter(verb="hook.refused").count() == 2


def test_a_replay_is_refused_when_it_is_old_and_changes_nothing_when_it_is_young(
    stage, account, lost, move_clock
):
    """The incoming half of a public report: replayed after a minute, after ten, with no id and with a new one."""
    order, made = lost
    body, signed_at = event("refund.created", shown(stage, order)), time.time()
    assert deliver(account, body, at=signed_at).status_code == 200
    before = Finding.objects.filter(operation_id=made.id).count()
    move_clock(60)
    assert deliver(account, body, at=signed_at).status_code == 200
    header = stripe.WebhookSignature.generate_signature_header(body, HOOK_SECRET, int(signed_at))
    for changed in (body.replace('"id": "evt_', '"id": "evt_9'), body.replace('"id"', '"di"', 1)):
        assert deliver(account, changed, header=header).status_code == 401
    move_clock(9 * 60)
    late = deliver(account, body, at=signed_at)
    assert (late.status_code, late.json()["code"]) == (400, "stale_signature")
    assert deliver(account, body, at=time.time() + 3600).status_code == 400  # nor one from the future
    assert Finding.objects.filter(operation_id=made.id).count() == before
    assert Hook.objects.count() == 1


def test_an_older_message_changes_nothing_in_whatever_order_they_come(stage, account):
    order = stage.order(SMALL)
    stage.provider.fault("bounce_after", seconds=0.1, times=1)
    run = stage.carry_on(stage.ask_refund(order))
    stage.rest()
    made, now = operation(run), time.time()
    succeeded = {**shown(stage, order), "status": "succeeded", "failure_reason": None}
    failed = {**succeeded, "status": "failed", "failure_reason": "expired_or_canceled_card"}
    deliver(account, event("refund.failed", failed, at=now))
    deliver(account, event("refund.created", succeeded, at=now - 2))
    deliver(account, event("refund.created", {**succeeded, "status": "pending"}, at=now))
    made.refresh_from_db()
    assert made.status == "succeeded"
    assert made.reversed_at is not None
    assert outcomes() == {"taken": 2, "older": 1}
    kinds = [each.kind for each in Incident.objects.filter(about=made.public_id)]
    assert kinds == ["effect_reversed"]


def test_a_refund_that_failed_raises_no_alarm_when_its_first_message_comes_late(stage, account, lost):
    order, made = lost
    created = shown(stage, order)
    failed = {**created, "status": "failed", "failure_reason": "declined"}
    deliver(account, event("refund.failed", failed))
    assert loaded(made.id).status == "failed"
    deliver(account, event("refund.created", created))
    assert loaded(made.id).status == "failed"
    assert not Incident.objects.filter(about=made.public_id).exists()
    other = {**created, "id": "re_other"}  # another effect for the same operation is one
    deliver(account, event("refund.created", other))
    assert Incident.objects.filter(about=made.public_id, kind="effect_after_end").exists()


def test_that_another_refund_was_undone_is_no_word_about_ours(stage, account):
    """Two refunds carry one operation, and somebody takes the second one back."""
    order = stage.order(SMALL)
    made = operation(stage.carry_on(stage.ask_refund(order)))
    stage.rest()
    twin = {**shown(stage, order), "id": "re_twin", "status": "canceled"}
    deliver(account, event("refund.updated", twin))
    made.refresh_from_db()
    assert (made.status, made.reversed_at) == ("succeeded", None)
    deliver(account, event("refund.updated", {**twin, "id": made.provider_ref}))
    made.refresh_from_db()
    assert made.reversed_at is not None


def test_a_yes_to_another_amount_is_an_alarm_also_after_the_end(stage, account, lost):
    order, made = lost
    refund = shown(stage, order)
    deliver(account, event("refund.failed", {**refund, "status": "failed", "failure_reason": "declined"}))
    assert loaded(made.id).status == "failed"
    deliver(account, event("refund.created", {**refund, "id": "re_other", "amount": 1}))
    assert loaded(made.id).status == "failed"
    assert Incident.objects.filter(about=made.public_id, kind="contradiction").exists()
    assert AuditEntry.objects.filter(verb="operation.contradiction", security=True).exists()


@pytest.mark.parametrize("said", [Verdict.REFUSED, Verdict.BLOCKED, Verdict.NOT_SENT, Verdict.UNKNOWN])
def test_what_is_accepted_stays_so_whatever_the_late_answer_says(stage, account, said):
    """Their message came first: there is an effect on its way, which no answer to the request unmakes."""
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    pending = {
        "id": "re_1", "object": "refund", "amount": LARGE, "currency": "eur", "status": "pending",
        "charge": departure.call.params["charge"], "metadata": {"operation_id": departure.call.operation_id},
    }  # fmt: skip
    deliver(account, event("refund.created", pending))
    late = Evidence(Source.ANSWER, Answer(said, code="late"), attempt=departure.attempt)
    made = take(departure.operation_id, late)
    assert (made.status, made.provider_ref) == ("executing", "re_1")
    deliver(account, event("refund.updated", {**pending, "id": "re_twin", "status": "canceled"}))
    assert loaded(made.id).status == "executing"
    assert "operation.unknown" not in types(made.run)


def test_a_message_before_the_answer_settles_and_the_answer_confirms(stage, account):
    order = stage.order(LARGE)
    approval = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    stage.provider.fault("slow_after", seconds=1.0, times=1)

    def announce():
        while not stage.refunds(order):
            time.sleep(0.02)
        answer = deliver(account, event("refund.created", shown(stage, order)))
        return answer.status_code, loaded(approval.operation_id).status

    told, answered = together(announce, lambda: send(departure))
    assert told == (200, "succeeded")
    assert answered.status == "succeeded"
    assert types(answered.run).count("operation.succeeded") == 1
    assert not Incident.objects.filter(about=answered.public_id).exists()


def test_a_message_and_a_look_up_at_once_settle_once(stage, account, lost):
    order, made = lost
    body = event("refund.created", shown(stage, order))
    told, looked = together(lambda: deliver(account, body), lambda: look_up(made.id))
    assert told.status_code == 200
    assert looked.status == "succeeded"
    assert types(made.run).count("operation.succeeded") == 1
    assert not Incident.objects.filter(about=made.public_id).exists()


def test_what_belongs_to_no_operation_here_is_kept_and_what_is_another_tenants_is_not_touched(
    stage, account, lost
):
    order, made = lost
    theirs = factories.tenant("globex")
    connect(theirs, stage.provider)
    refund = shown(stage, order)
    their_account = Connection.objects.get(tenant=theirs, connector="stripe")
    deliver(their_account, event("refund.created", refund))  # names an operation, of another tenant
    deliver(account, event("refund.created", {**refund, "id": "re_by_hand", "metadata": {}}))
    deliver(account, event("refund.updated", {**refund, "id": "re_by_hand", "metadata": {}}))
    deliver(account, event("charge.refunded", {"object": "charge", "id": order["charge"]}))
    assert loaded(made.id).status == "unknown"
    rows = Unmatched.objects.order_by("first_at").values_list("tenant__slug", "provider_ref", "claims")
    assert list(rows) == [("globex", refund["id"], made.public_id), ("acme", "re_by_hand", "")]
    assert outcomes() == {"unmatched": 3, "ignored": 1}


def test_a_message_over_another_connection_of_the_same_tenant_settles_nothing(stage, account, lost):
    """Whoever keeps the secret of one account has no word about the operations of another."""
    order, made = lost
    refund = shown(stage, order)
    other = factories.connection(
        stage.tenant, "stripe", stage.provider.payments_url, STRIPE_KEY, "whsec_other", name="other"
    )
    deliver(other, event("refund.created", refund), secret="whsec_other")
    deliver(other, event("refund.updated", {**refund, "metadata": {}}), secret="whsec_other")
    assert loaded(made.id).status == "unknown"
    assert not Finding.objects.filter(operation_id=made.id, source="webhook").exists()
    assert Unmatched.objects.get().connection == other


def test_a_message_about_a_trial_of_the_contract_test_is_nobodys(stage, account):
    trial = {
        "id": "re_trial", "object": "refund", "amount": 100, "currency": "eur", "status": "succeeded",
        "charge": "ch_1", "metadata": {"operation_id": "trial_01"},
    }  # fmt: skip
    assert deliver(account, event("refund.created", trial)).status_code == 200
    assert outcomes() == {"ignored": 1}
    assert not Unmatched.objects.exists()


def test_only_a_connection_whose_provider_sends_messages_is_an_address(stage, account):
    mail = Connection.objects.get(tenant=stage.tenant, connector="mail")
    addresses = [mail.public_id, "con_" + "0" * 26, "payments", account.public_id[:-1]]
    for address in addresses:
        answer = client.post(f"/hooks/{address}", "{}", content_type="application/json")
        assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert client.get(f"/hooks/{account.public_id}").status_code == 405
    large = client.post(f"/hooks/{account.public_id}", "x" * 300_000, content_type="application/json")
    assert large.status_code == 413
    assert client.post(f"/hooks/{account.public_id}", "x", content_type="text/plain").status_code == 415


def test_a_message_is_believed_without_the_credential_that_was_taken_away(stage, account, lost):
    order, made = lost
    remove_credential(account, SYSTEM)
    assert deliver(account, event("refund.created", shown(stage, order))).status_code == 200
    assert loaded(made.id).status == "succeeded"


def test_a_message_that_cannot_be_taken_at_all_holds_up_no_other_and_nothing_that_is_due(
    stage, account, lost, move_clock
):
    order, made = lost
    refund = shown(stage, order)
    endless = {**refund, "id": "re_by_hand", "metadata": {}, "amount": 10**30}  # no column holds it
    assert deliver(account, event("refund.created", endless)).status_code == 200
    deliver(account, event("refund.created", refund))
    sql("UPDATE operations_hook SET taken_at = NULL, outcome = ''")
    move_clock(hooks.LEFT_SECONDS + 1)
    assert hooks.take_left() == 1
    assert outcomes() == {"unreadable": 1, "taken": 1}
    incident = Incident.objects.get(kind="message_unreadable", closed_at=None)
    assert incident.about == str(account.id), "it may tell of money, so somebody has to look"
    assert stage.carry_on(made.run).status == "completed"


def test_a_message_that_nobody_could_take_is_taken_by_whoever_works_next(stage, account, lost, move_clock):
    order, made = lost
    body = event("refund.created", shown(stage, order))
    deliver(account, body)
    sql("UPDATE operations_hook SET taken_at = NULL, outcome = ''")  # as if its receiver had died in between
    assert hooks.take_left() == 0  # it may still be at it
    move_clock(hooks.LEFT_SECONDS + 1)
    assert hooks.take_left() == 1
    assert hooks.take_left() == 0
    assert loaded(made.id).status == "succeeded"
