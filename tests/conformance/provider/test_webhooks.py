"""Events arrive signed, in spite of a receiver that fails, and tell the truth."""

import time

import pytest
import stripe

SECRET = "whsec_conformance"


@pytest.fixture
def announcing(own_provider, receiver):
    return own_provider("--webhook-url", receiver.url, "--webhook-secret", SECRET)


def taken(receiver):
    body, signature = receiver.taken.get(timeout=10)
    return stripe.Webhook.construct_event(body, signature, SECRET)


def test_a_refund_is_announced_and_signed(announcing, receiver):
    order = announcing.new_order()
    refund = announcing.refund(order, "key-announced", metadata={"operation_id": "op_1"})
    first, second = taken(receiver), taken(receiver)
    assert (first.type, first.data.object.id) == ("charge.refunded", order["charge"])
    assert first.data.object.amount_refunded == 1_000
    assert (second.type, second.data.object.id) == ("refund.created", refund.id)
    assert second.data.object.metadata["operation_id"] == "op_1"
    assert second.request.idempotency_key == "key-announced"
    assert (second.api_version, second.livemode) == (stripe.api_version, False)
    assert first.id != second.id


def test_a_changed_body_or_another_secret_is_noticed(announcing, receiver):
    announcing.refund(announcing.new_order())
    body, signature = receiver.taken.get(timeout=10)
    for payload, secret in ((body.replace(b"succeeded", b"failed"), SECRET), (body, "whsec_other")):
        with pytest.raises(stripe.SignatureVerificationError):
            stripe.Webhook.construct_event(payload, signature, secret)


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ({"mode": "pending_then"}, ["refund.updated:succeeded"]),
        ({"mode": "pending_then", "status": "canceled"}, ["refund.updated:canceled"]),
        ({"mode": "pending_then", "status": "failed"}, ["refund.updated:failed", "refund.failed:failed"]),
        ({"mode": "bounce_after"}, ["refund.updated:failed", "refund.failed:failed"]),
    ],
)
def test_what_becomes_of_a_refund_is_announced(announcing, receiver, fault, kinds):
    announcing.fault(**fault, seconds=0.1, times=1)
    announcing.refund(announcing.new_order())
    created = [taken(receiver).type for _ in range(2)]
    assert created == ["charge.refunded", "refund.created"]
    events = [taken(receiver) for _ in kinds]
    assert [f"{event.type}:{event.data.object.status}" for event in events] == kinds


def test_an_event_is_early_when_the_answer_is_late_and_true_when_it_lies(announcing, receiver):
    announcing.fault("slow_after", seconds=1, times=1)
    with pytest.raises(stripe.APIConnectionError):
        announcing.refund(announcing.new_order(), client=announcing.stripe(timeout=0.3))
    assert taken(receiver).type == "charge.refunded"
    assert taken(receiver).type == "refund.created"
    announcing.fault("wrong_amount", times=1)
    announcing.refund(announcing.new_order())
    assert [taken(receiver).type, taken(receiver).data.object.amount] == ["charge.refunded", 1_000]


def test_a_change_of_metadata_is_announced(announcing, receiver):
    refund = announcing.refund(announcing.new_order())
    announcing.stripe().v1.refunds.update(refund.id, {"metadata": {"a": "1"}})
    assert [taken(receiver).type for _ in range(3)] == ["charge.refunded", "refund.created", "refund.updated"]


def test_a_receiver_that_fails_is_asked_again(announcing, receiver):
    receiver.answers = [500, 200, 200]
    announcing.refund(announcing.new_order())
    events = [taken(receiver) for _ in range(3)]
    assert [event.type for event in events] == ["charge.refunded", "refund.created", "charge.refunded"]
    assert events[0].id == events[2].id


def test_an_event_that_nobody_takes_is_given_up(announcing, receiver, wait_for):
    receiver.answers = [500] * 4
    announcing.refund(announcing.new_order())
    for _ in range(2):
        taken(receiver)
    wait_for(lambda: announcing.sql("SELECT min(tries) FROM events") == [(1,)])
    announcing.sql("UPDATE events SET tries = 4")
    for _ in range(2):
        taken(receiver)
    waiting = "SELECT count(*) FROM events WHERE due_at IS NOT NULL"
    wait_for(lambda: announcing.sql(waiting) == [(0,)])


def test_events_that_were_not_delivered_survive_a_restart(announcing, receiver):
    receiver.answers = [500, 500]
    refund = announcing.refund(announcing.new_order())
    for _ in range(2):
        taken(receiver)
    announcing.stop()
    announcing.close()
    announcing.start()
    assert {taken(receiver).type for _ in range(2)} == {"charge.refunded", "refund.created"}
    assert announcing.stripe().v1.refunds.retrieve(refund.id).id == refund.id


def test_nothing_is_announced_for_what_had_no_effect(announcing, receiver):
    order = announcing.new_order()
    for mode in ("reject", "empty_200", "drop_before_commit", "rate_limited"):
        announcing.fault(mode, times=1)
        with pytest.raises(stripe.StripeError):
            announcing.refund(order)
    announcing.refund(order, "key-once")
    announcing.refund(order, "key-once")
    assert [taken(receiver).type for _ in range(2)] == ["charge.refunded", "refund.created"]
    time.sleep(0.1)
    assert receiver.taken.empty()
