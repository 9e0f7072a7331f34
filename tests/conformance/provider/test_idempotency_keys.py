"""One key, one effect: replayed answers, compared bodies, and what is not remembered."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import stripe


def test_the_same_request_under_the_same_key_is_answered_again(provider, order):
    first = provider.refund(order, "key-same", metadata={"operation_id": "op_1"})
    again = provider.refund(order, "key-same", metadata={"operation_id": "op_1"})
    assert again.to_dict() == first.to_dict()
    assert again.last_response.headers["Idempotent-Replayed"] == "true"
    assert again.last_response.headers["Original-Request"] == first.last_response.headers["Request-Id"]
    assert len(provider.refunds_of(order)) == 1


@pytest.mark.parametrize("changed", [{"amount": 1_001}, {"metadata": {"a": "1"}}, {"reason": "duplicate"}])
def test_another_body_under_the_same_key_is_refused(provider, order, changed):
    key = f"key-{order['id']}"
    provider.refund(order, key)
    with pytest.raises(stripe.IdempotencyError, match="same parameters") as refused:
        provider.refund(order, key, **changed)
    assert refused.value.http_status == 400
    assert [row["amount"] for row in provider.refunds_of(order)] == [1_000]


def test_another_endpoint_under_the_same_key_is_refused(provider, order):
    provider.refund(order, "key-endpoint")
    with pytest.raises(stripe.IdempotencyError, match="'/v1/refunds' vs '/v1/charges'"):
        provider.stripe().v1.charges.create(
            {"amount": 1, "currency": "eur"}, {"idempotency_key": "key-endpoint"}
        )


def test_a_twin_in_flight_is_told_409(provider, order, wait_for):
    provider.fault("slow", seconds=0.8, times=1)
    before = provider.books()["calls"]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(provider.refund, order, "key-twin")
        wait_for(lambda: provider.books()["calls"] > before)
        with pytest.raises(stripe.APIError) as refused:
            provider.refund(order, "key-twin")
        assert (refused.value.http_status, refused.value.error.code) == (409, "idempotency_key_in_use")
        made = first.result()
    assert provider.refund(order, "key-twin").id == made.id
    assert len(provider.refunds_of(order)) == 1


def test_twenty_twins_at_once_have_one_effect(provider, order):
    def attempt(_: int) -> str:
        try:
            return provider.refund(order, "key-twenty").id
        except stripe.APIError as refused:
            return refused.error.code

    with ThreadPoolExecutor(20) as pool:
        outcomes = set(pool.map(attempt, range(20)))
    [row] = provider.refunds_of(order)
    assert outcomes <= {row["id"], "idempotency_key_in_use"}


def test_bad_parameters_do_not_use_up_the_key(provider, order):
    for params in ({"amount": 0}, {"charge": "ch_none"}, {"colour": "red"}):
        with pytest.raises(stripe.InvalidRequestError):
            provider.refund(order, "key-not-used-up", **params)
    assert provider.refund(order, "key-not-used-up").status == "succeeded"


def test_what_the_charge_refused_is_refused_again(provider, order, wait_for):
    provider.fault("bounce_after", seconds=0.6, times=1)
    bounced = provider.refund(order, amount=10_000)
    with pytest.raises(stripe.InvalidRequestError) as first:
        provider.refund(order, "key-refused-again")
    wait_for(lambda: provider.stripe().v1.refunds.retrieve(bounced.id).status == "failed")
    with pytest.raises(stripe.InvalidRequestError) as again:
        provider.refund(order, "key-refused-again")
    assert again.value.json_body == first.value.json_body
    assert again.value.headers["Idempotent-Replayed"] == "true"
    assert provider.refund(order, "key-of-another-try").status == "succeeded"


def test_keys_die_after_24_hours(provider, order):
    provider.refund(order, "key-aged")
    provider.sql("UPDATE stored_answers SET created_at = created_at - 23.9 * 3600 WHERE key = 'key-aged'")
    provider.refund(order, "key-aged")
    assert len(provider.refunds_of(order)) == 1
    provider.sql("UPDATE stored_answers SET created_at = created_at - 0.2 * 3600 WHERE key = 'key-aged'")
    provider.refund(order, "key-aged")
    assert len(provider.refunds_of(order)) == 2


def test_a_key_of_256_characters_is_refused(provider, order):
    provider.refund(order, "k" * 255)
    with pytest.raises(stripe.IdempotencyError, match="255"):
        provider.refund(order, "k" * 256)


def test_without_key_support_every_write_has_its_effect(provider, order):
    provider.fault("no_key_support")
    first, second = provider.refund(order, "key-ignored"), provider.refund(order, "key-ignored", amount=5)
    assert first.id != second.id
    assert "Idempotent-Replayed" not in second.last_response.headers
    provider.fault("ok")
    assert "Idempotent-Replayed" not in provider.refund(order, "key-ignored").last_response.headers
    assert [row["idempotency_key"] for row in provider.refunds_of(order)] == ["key-ignored"] * 3


def test_keys_can_be_forgotten_early(provider, order):
    provider.fault("forget_keys_after", seconds=30)
    first = provider.refund(order, "key-forgotten")
    assert provider.refund(order, "key-forgotten").id == first.id
    provider.sql("UPDATE stored_answers SET created_at = created_at - 31 WHERE key = 'key-forgotten'")
    assert provider.refund(order, "key-forgotten").id != first.id
    assert len(provider.refunds_of(order)) == 2
