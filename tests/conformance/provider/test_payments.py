"""Charges and refunds as the official SDK sees them."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import stripe

REFUND_FIELDS = {
    "id", "object", "amount", "balance_transaction", "charge", "created", "currency", "destination_details", "metadata",
    "payment_intent", "reason", "receipt_number", "source_transfer_reversal", "status", "transfer_reversal",
}  # fmt: skip


def test_a_refund_is_made_and_found_again(provider, order):
    client = provider.stripe()
    metadata = {"operation_id": "op_1", "key_digest": "d" * 64}
    made = provider.refund(order, "key-found-again", metadata=metadata, reason="requested_by_customer")
    assert set(made.to_dict()) == REFUND_FIELDS
    assert (made.status, made.amount, made.currency) == ("succeeded", 1_000, "eur")
    assert abs(made.created - time.time()) < 5
    assert client.v1.refunds.retrieve(made.id).to_dict() == made.to_dict()
    [listed] = client.v1.refunds.list({"charge": order["charge"]}).data
    assert listed.metadata.to_dict() == metadata
    assert provider.refunds_of(order) == [
        {
            "id": made.id,
            "charge": order["charge"],
            "order": order["id"],
            "amount": 1_000,
            "currency": "eur",
            "status": "succeeded",
            "idempotency_key": "key-found-again",
            "operation_id": "op_1",
            "key_digest": "d" * 64,
        }
    ]


def test_a_charge_shows_what_was_refunded(provider, order):
    client = provider.stripe()
    provider.refund(order, amount=4_000)
    charge = client.v1.charges.retrieve(order["charge"])
    assert (charge.amount, charge.amount_refunded, charge.refunded) == (10_000, 4_000, False)
    assert charge.metadata["order"] == order["id"]
    without_amount = client.v1.refunds.create({"payment_intent": charge.payment_intent})
    assert without_amount.amount == 6_000
    charge = client.v1.charges.retrieve(order["charge"])
    assert (charge.amount_refunded, charge.refunded) == (10_000, True)


def test_a_charge_is_made(provider):
    client = provider.stripe()
    charge = client.v1.charges.create(
        {"amount": 700, "currency": "EUR", "source": "tok_visa", "metadata": {"order": "X-1"}}
    )
    assert (charge.amount, charge.currency, charge.status) == (700, "eur", "succeeded")
    assert client.v1.charges.list({"limit": 1}).data[0].id == charge.id
    refund = client.v1.refunds.create({"charge": charge.id})
    assert [row["id"] for row in provider.books(order="X-1")["refunds"]] == [refund.id]


def test_lists_are_paged_newest_first(provider, order):
    client = provider.stripe()
    made = [provider.refund(order, amount=10 + number).id for number in range(5)]
    first = client.v1.refunds.list({"charge": order["charge"], "limit": 2})
    assert (first.has_more, first.url) == (True, "/v1/refunds")
    assert [refund.id for refund in first.auto_paging_iter()] == made[::-1]
    before = client.v1.refunds.list({"charge": order["charge"], "limit": 2, "ending_before": made[0]})
    assert ([refund.id for refund in before.data], before.has_more) == (made[2:0:-1], True)


def test_lists_can_be_narrowed_to_a_window_of_time(provider, order):
    refunds = provider.stripe().v1.refunds
    made = provider.refund(order)
    of_charge = {"charge": order["charge"]}
    assert len(refunds.list({**of_charge, "created": {"gte": made.created, "lte": made.created}}).data) == 1
    assert refunds.list({**of_charge, "created": {"gt": made.created}}).data == []
    assert refunds.list({**of_charge, "created": {"lt": made.created}}).data == []


def test_metadata_is_merged_and_removed(provider, order):
    client = provider.stripe()
    made = provider.refund(order, metadata={"operation_id": "op_1", "a": "1"})
    changed = client.v1.refunds.update(made.id, {"metadata": {"a": "", "b": "2"}})
    assert changed.metadata.to_dict() == {"operation_id": "op_1", "b": "2"}
    assert client.v1.refunds.update(made.id, {"metadata": ""}).metadata.to_dict() == {}


def test_more_than_was_paid_is_not_given_back(provider, order):
    provider.refund(order, amount=9_000)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        provider.refund(order, amount=2_000)
    assert refused.value.user_message == (
        "Refund amount (€20.00) is greater than unrefunded amount on charge (€10.00)"
    )
    assert (refused.value.http_status, refused.value.param) == (400, "amount")
    provider.refund(order, amount=1_000)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        provider.refund(order, amount=1)
    assert refused.value.code == "charge_already_refunded"
    assert sum(row["amount"] for row in provider.refunds_of(order)) == 10_000


def test_refunds_at_the_same_time_never_exceed_the_charge(provider):
    order = provider.new_order(1_000)

    def attempt(number: int) -> bool:
        try:
            provider.refund(order, amount=90)
        except stripe.InvalidRequestError:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(attempt, range(20))) == 11
    assert sum(row["amount"] for row in provider.refunds_of(order)) == 990


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"charge": "ch_none"}, "resource_missing", "charge"),
        ({"charge": None}, "parameter_missing", None),
        ({"payment_intent": "pi_none"}, None, None),
        ({"charge": None, "payment_intent": "pi_none"}, "resource_missing", "payment_intent"),
        ({"amount": 0}, "parameter_invalid_integer", "amount"),
        ({"amount": -5}, "parameter_invalid_integer", "amount"),
        ({"amount": "12.50"}, "parameter_invalid_integer", "amount"),
        ({"reason": "because"}, None, "reason"),
        ({"currency": "usd"}, None, "currency"),
        ({"colour": "red"}, "parameter_unknown", "colour"),
        ({"metadata": {"k" * 41: "v"}}, None, f"metadata[{'k' * 41}]"),
        ({"metadata": {"k": "v" * 501}}, None, "metadata[k]"),
    ],
)
def test_bad_parameters_are_named(provider, order, params, code, param):
    with pytest.raises(stripe.InvalidRequestError) as refused:
        provider.refund(order, **params)
    assert (refused.value.http_status, refused.value.code, refused.value.param) == (400, code, param)
    assert provider.refunds_of(order) == []


def test_what_does_not_exist_is_a_404(provider):
    client = provider.stripe()
    for look_up in (client.v1.refunds.retrieve, client.v1.charges.retrieve):
        with pytest.raises(stripe.InvalidRequestError) as refused:
            look_up("re_none")
        assert (refused.value.http_status, refused.value.code) == (404, "resource_missing")
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.v1.refunds.update("re_none", {"metadata": {"a": "1"}})
    assert refused.value.http_status == 404
    with pytest.raises(stripe.InvalidRequestError, match="Unrecognized request URL"):
        client.v1.customers.retrieve("cus_1")
    with pytest.raises(stripe.InvalidRequestError, match="No such refund"):
        client.v1.refunds.list({"starting_after": "re_none"})


def test_a_wrong_api_key_is_refused(provider, order):
    with pytest.raises(stripe.AuthenticationError, match="Invalid API Key provided: sk_wrong"):
        provider.refund(order, client=provider.stripe(key="sk_wrong_key_123"))
    answer = httpx.get(f"{provider.payments_url}/v1/charges")
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "invalid_request_error")
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert provider.refunds_of(order) == []


def test_every_answer_names_its_request_and_version(provider, order):
    made = provider.refund(order, "key-headers")
    headers = made.last_response.headers
    assert headers["Request-Id"].startswith("req_")
    assert headers["Stripe-Version"] == stripe.api_version
    assert headers["Idempotency-Key"] == "key-headers"
    assert "Idempotent-Replayed" not in headers


def test_calls_count_the_money_writes_received_whatever_came_of_them(provider, order):
    before = provider.books()["calls"]
    made = provider.refund(order, "key-counted")
    provider.refund(order, "key-counted")
    with pytest.raises(stripe.InvalidRequestError):
        provider.refund(order, amount=0)
    with pytest.raises(stripe.AuthenticationError):
        provider.refund(order, client=provider.stripe(key="sk_wrong_key_123"))
    provider.fault("rate_limited", times=1)
    with pytest.raises(stripe.RateLimitError):
        provider.refund(order)
    provider.stripe().v1.refunds.retrieve(made.id)
    provider.stripe().v1.refunds.update(made.id, {"metadata": {"a": "1"}})
    assert provider.books()["calls"] - before == 5


def test_a_form_that_cannot_be_read_is_refused(provider):
    for body in (b"charge", b"\xff=\xfe"):
        answer = provider.http.post(
            "/v1/refunds",
            content=body,
            headers={"Authorization": "Bearer sk_test_conformance"},
        )
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
