"""What a proposal rests on: whose the order is, what its charge can still give, and where a mail goes."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import stripe

from operations.connectors.base import Call, CheckFailed, Facts
from operations.connectors.registry import ACTIONS, CONNECTORS, reversal_of
from tests.conformance.connectors.servers import Scripted
from tests.conformance.connectors.subjects import AMOUNT_MINOR, SUBJECTS, Subject
from tests.provider import STRIPE_KEY, Provider

REFUND, CANCEL, NOTE, MAIL, REOPEN = SUBJECTS


def _check(subject: Subject, call: Call) -> Facts:
    return subject.connector.check(call)


def _refused(subject: Subject, call: Call) -> CheckFailed:
    with pytest.raises(CheckFailed) as failed:
        subject.connector.check(call)
    return failed.value


def _broken(subject: Subject, call: Call) -> list[str]:
    return [fact.name for fact in _check(subject, call).broken_guards()]


def _values(facts: Facts) -> dict[str, Any]:
    return {fact.name: fact.value for fact in facts.facts}


def test_nothing_is_broken_in_an_ordinary_proposal(provider: Provider, subject: Subject) -> None:
    facts = _check(subject, subject.call(provider))
    assert facts.broken_guards() == []
    assert facts.fields


def test_an_order_of_another_tenant_cannot_be_touched(provider: Provider) -> None:
    foreign = provider.order("globex")
    for subject in (REFUND, CANCEL):
        failed = _refused(subject, subject.call(provider, foreign))
        assert (failed.code, failed.retryable) == ("not_found", False)
        assert foreign["id"] in failed.detail


def test_an_order_of_another_customer_cannot_be_touched(provider: Provider) -> None:
    order = provider.order()
    for subject in (REFUND, CANCEL):
        failed = _refused(subject, subject.call(provider, order, actor="customer:A-C1001"))
        assert (failed.code, failed.retryable) == ("not_yours", False)
        assert _broken(subject, subject.call(provider, order, actor=f"customer:{order['customer']}")) == []


def test_the_charge_of_another_order_breaks_a_guard(provider: Provider) -> None:
    call, other = REFUND.call(provider), provider.order("globex")
    wrong = replace(call, params={**call.params, "charge": other["charge"]})
    assert _broken(REFUND, wrong) == ["order_charge"]


@pytest.mark.parametrize("subject", [REFUND, CANCEL], ids=lambda subject: subject.name)
def test_parameters_that_speak_of_another_order_than_the_target_are_refused(
    provider: Provider, subject: Subject
) -> None:
    call = replace(subject.call(provider), target=provider.order()["id"])
    assert _refused(subject, call).code == "other_order"


def test_more_than_the_line_or_the_rest_breaks_a_guard(provider: Provider) -> None:
    order = provider.order()
    call = REFUND.call(provider, order)
    greedy = replace(call, params={**call.params, "amount_minor": 5_001})
    assert _broken(REFUND, greedy) == ["line_minor", "refundable_minor"]
    REFUND.send(call)
    rest = replace(REFUND.call(provider, order), params={**call.params, "amount_minor": 4_001})
    assert _broken(REFUND, rest) == ["refundable_minor"]


def test_another_currency_breaks_a_guard(provider: Provider) -> None:
    call = REFUND.call(provider)
    assert _broken(REFUND, replace(call, params={**call.params, "currency": "USD"})) == ["charge_currency"]


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, []),
        ({"disputed": True}, ["charge_status"]),
        ({"captured": False}, ["charge_status"]),
        ({"status": "failed"}, ["charge_status"]),
        ({"payment_method_details": {"type": "sepa_debit"}}, []),
    ],
)
def test_only_a_captured_and_undisputed_charge_is_refunded(
    provider: Provider, scripted: Scripted, changed: dict[str, Any], broken: list[str]
) -> None:
    no_refunds = {"object": "list", "url": "/v1/refunds", "has_more": False, "data": []}
    charge = {
        "amount_captured": 5_000, "amount_refunded": 0, "currency": "eur", "status": "succeeded", "captured": True,
        "disputed": False,
    }  # fmt: skip
    scripted.says(200, json.dumps({**no_refunds, **charge, **changed}).encode())  # both answers in one
    assert _broken(REFUND, REFUND.call(provider, base_url=scripted.url)) == broken


def test_a_line_or_a_charge_that_does_not_exist_is_refused(provider: Provider) -> None:
    call = REFUND.call(provider)
    assert _refused(REFUND, replace(call, params={**call.params, "line": "nothing"})).code == "no_such_line"
    assert (
        _refused(REFUND, replace(call, params={**call.params, "charge": "ch_none"})).code == "no_such_charge"
    )


def test_the_money_of_a_charge_is_told_by_whose_effect_it_is(provider: Provider) -> None:
    order = provider.order()
    ours = REFUND.call(provider, order)
    REFUND.send(ours)
    somebody = stripe.StripeClient(
        STRIPE_KEY,
        base_addresses={"api": provider.payments_url},
        http_client=stripe.RequestsClient(timeout=2),
    )
    for _ in range(2):
        somebody.v1.refunds.create({"charge": order["charge"], "amount": 300})
    facts = _check(REFUND, REFUND.call(provider, order))
    assert facts.capacity_minor == 5_000
    assert facts.theirs == {ours.operation_id: AMOUNT_MINOR, "": 600}
    assert _values(facts)["refundable_minor"] == 3_400
    assert [(field.before, field.after) for field in facts.fields if field.name == "refunded"] == [
        (1_600, 2_600)
    ]


def test_a_refund_that_failed_takes_nothing_from_the_charge(provider: Provider) -> None:
    order = provider.order()
    provider.fault("pending_then", status="failed", seconds=0, times=1)
    call = REFUND.call(provider, order)
    REFUND.send(call)
    while [each["status"] for each in REFUND.effects(provider, call)] != ["failed"]:
        time.sleep(0.01)
    facts = _check(REFUND, REFUND.call(provider, order))
    assert (facts.theirs, _values(facts)["refundable_minor"]) == ({}, 5_000)


def test_a_cancelled_order_is_not_cancelled_again(provider: Provider) -> None:
    order = provider.order()
    CANCEL.send(CANCEL.call(provider, order))
    assert _broken(CANCEL, CANCEL.call(provider, order)) == ["is_cancelled"]


def test_only_the_cancellation_that_stands_is_taken_back(provider: Provider) -> None:
    order = provider.order()
    call = REOPEN.call(provider, order)
    [field] = _check(REOPEN, call).fields
    assert (field.name, field.before, field.after) == ("order_status", "cancelled", "delivered")
    assert REOPEN.send(call).verdict == "applied"
    assert _broken(REOPEN, call) == ["cancellation"]  # it stands again
    later = REOPEN.call(provider, order)
    assert (_broken(REOPEN, call), _broken(REOPEN, later)) == (["cancellation"], [])
    assert _refused(REOPEN, replace(later, target=provider.order()["id"])).code == "other_order"
    assert _refused(REOPEN, replace(later, actor="customer:A-C1001")).code == "not_yours"


def test_what_undoes_an_action_is_told_by_the_registry() -> None:
    assert reversal_of("order.cancel") is ACTIONS["order.reopen"]
    assert [reversal_of(name) for name in ("order.reopen", "note.add", "refund.create", "")] == [None] * 4


def test_notes_of_another_tenant_cannot_be_written(provider: Provider) -> None:
    assert _refused(NOTE, replace(NOTE.call(provider), target="globex")).code == "not_yours"


@pytest.mark.parametrize(
    ("fault", "code"), [("unreachable", "payments_unreachable"), ("auth_failed", "credential_refused")]
)
def test_what_cannot_be_read_now_can_be_read_later(provider: Provider, fault: str, code: str) -> None:
    call = REFUND.call(provider)
    provider.fault(fault, door="payments")
    failed = _refused(REFUND, call)
    assert (failed.code, failed.retryable) == (code, True)


@pytest.mark.parametrize("subject", [REFUND, CANCEL, MAIL], ids=lambda subject: subject.name)
@pytest.mark.parametrize(
    ("fault", "code"), [("unreachable", "shop_unreachable"), ("auth_failed", "shop_refuses_us")]
)
def test_a_shop_that_cannot_be_asked_can_be_asked_later(
    provider: Provider, subject: Subject, fault: str, code: str
) -> None:
    call = subject.call(provider)
    provider.fault(fault, door="shop")
    failed = _refused(subject, call)
    assert (failed.code, failed.retryable) == (code, True)


CHARGE = (
    b'{"amount_captured": %d, "amount_refunded": 0, "currency": "eur", "status": "succeeded", "captured": true,'
    b' "disputed": false, "object": "list", "data": [], "has_more": false}'
)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"amount_captured": null}', CHARGE % 10**30, CHARGE % -1,
        b'{"id": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_no_fact(
    provider: Provider, scripted: Scripted, settings, body: bytes
) -> None:
    scripted.says(200, body)
    unreadable = REFUND.call(provider, base_url=scripted.url)
    assert _refused(REFUND, unreadable).code == "payments_unreachable"
    settings.AGENTOPS_SHOP_URL = scripted.url
    assert _refused(REFUND, unreadable).code == "shop_unreadable"


def test_a_shop_without_address_is_said_so(provider: Provider, settings) -> None:
    call = REFUND.call(provider)
    settings.AGENTOPS_SHOP_URL = ""
    failed = _refused(REFUND, call)
    assert (failed.code, failed.retryable) == ("shop_not_configured", False)
    assert "AGENTOPS_SHOP_URL" in failed.detail


def test_the_address_of_a_mail_is_the_shops(provider: Provider) -> None:
    order = provider.order()
    call = MAIL.call(provider, order)
    number = order["id"].partition("-")[2]
    assert call.params["to_address"] == f"customer-{number}@acme.example"
    assert "to_address" not in ACTIONS["mail.send"].params.model_fields
    facts = _check(MAIL, call)
    assert call.params["to_address"] not in repr(facts)
    assert facts.fields[0].after == "c•••@acme.example"


def test_a_customer_without_an_address_gets_no_mail(provider: Provider, scripted: Scripted, settings) -> None:
    order = provider.order()
    settings.AGENTOPS_SHOP_URL = scripted.url
    scripted.says(200, b'{"name": "Mara", "email": "none"}')
    with pytest.raises(CheckFailed) as failed:
        MAIL.call(provider, order)
    assert (failed.value.code, failed.value.retryable) == ("no_address", False)


def test_a_customer_whom_nobody_may_see_gets_no_mail(provider: Provider) -> None:
    foreign = provider.order("globex")
    for order, actor in ((foreign, "token:tok_1"), (provider.order(), "customer:A-C1001")):
        with pytest.raises(CheckFailed) as failed:
            MAIL.call(provider, order, actor=actor)
        assert not failed.value.retryable


def test_a_mail_about_the_order_of_another_customer_breaks_a_guard(provider: Provider) -> None:
    call, other = MAIL.call(provider), provider.order()
    assert _broken(MAIL, replace(call, params={**call.params, "order": other["id"]})) == ["order_customer"]


def test_an_address_that_changed_since_breaks_a_guard(provider: Provider) -> None:
    call = MAIL.call(provider)
    assert _broken(MAIL, replace(call, params={**call.params, "to_address": "old@acme.example"})) == [
        "address_unchanged"
    ]


def test_parameters_that_speak_of_another_customer_than_the_target_are_refused(provider: Provider) -> None:
    assert _refused(MAIL, replace(MAIL.call(provider), target="A-C1001")).code == "other_customer"


def test_the_intent_of_a_refund_is_its_line_and_its_amount_and_no_words() -> None:
    action = ACTIONS["refund.create"]
    assert set(action.intent) == {"charge", "order", "line", "amount_minor", "currency"}
    assert {"reason", "note"}.isdisjoint(action.intent)


def test_every_field_of_an_intent_is_a_parameter() -> None:
    for action in ACTIONS.values():
        assert set(action.intent) <= set(action.params.model_fields)
        assert CONNECTORS[action.connector].name == action.connector


@pytest.mark.parametrize(
    "changed",
    [
        {"amount_minor": 0}, {"amount_minor": -1}, {"amount_minor": 10.5}, {"amount_minor": "1000"},
        {"amount_minor": True}, {"amount_minor": 10**12}, {"currency": "eur"}, {"currency": "EURO"},
        {"charge": "ch_1/../x"}, {"charge": "pi_1"}, {"order": " "}, {"line": ""}, {"reason": "because"},
        {"reason": "fraudulent"}, {"note": "x" * 501}, {"metadata": {}},
    ],
    ids=repr,
)  # fmt: skip
def test_parameters_that_are_no_refund_are_refused(changed: dict[str, Any]) -> None:
    params = {
        "charge": "ch_1", "order": "A-1", "line": "A-1-1", "amount_minor": 1_000, "currency": "EUR", "reason": "late",
    }  # fmt: skip
    model = ACTIONS["refund.create"].params
    model.model_validate(params)
    with pytest.raises(ValueError):
        model.model_validate({**params, **changed})
