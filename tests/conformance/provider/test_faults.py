"""Each fault that can be ordered, over real HTTP, and what the books say afterwards."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import stripe

LOST = (stripe.APIConnectionError,)


def test_slow_commits_after_its_client_has_left(provider, order, wait_for):
    provider.fault("slow", seconds=0.8, times=1)
    with pytest.raises(LOST):
        provider.refund(order, "key-slow", client=provider.stripe(timeout=0.2))
    assert provider.refunds_of(order) == []
    wait_for(lambda: provider.refunds_of(order))
    [row] = provider.refunds_of(order)
    assert provider.refund(order, "key-slow").id == row["id"]


def test_slow_after_has_committed_before_its_client_leaves(provider, order):
    provider.fault("slow_after", seconds=0.8, times=1)
    with pytest.raises(LOST):
        provider.refund(order, client=provider.stripe(timeout=0.3))
    assert len(provider.refunds_of(order)) == 1


def test_slow_answers_come_in_the_end(provider, order):
    for mode in ("slow", "slow_after"):
        provider.fault(mode, seconds=0.2, times=1)
        began = time.monotonic()
        assert provider.refund(order).status == "succeeded"
        assert time.monotonic() - began >= 0.2


def test_commit_then_drop_loses_only_the_answer(provider, order):
    provider.fault("commit_then_drop", times=1)
    with pytest.raises(LOST):
        provider.refund(order, "key-dropped")
    [row] = provider.refunds_of(order)
    again = provider.refund(order, "key-dropped")
    assert (again.id, again.last_response.headers["Idempotent-Replayed"]) == (row["id"], "true")
    assert len(provider.refunds_of(order)) == 1


def test_commit_then_500_is_replayed(provider, order):
    provider.fault("commit_then_500", times=1)
    for replayed in (None, "true", "true"):
        with pytest.raises(stripe.APIError) as broken:
            provider.refund(order, "key-500")
        assert (broken.value.http_status, broken.value.error.type) == (500, "api_error")
        assert broken.value.headers.get("Idempotent-Replayed") == replayed
    [row] = provider.refunds_of(order)
    assert provider.stripe().v1.refunds.list({"charge": order["charge"]}).data[0].id == row["id"]


def test_drop_before_commit_has_no_effect_and_keeps_nothing(provider, order):
    provider.fault("drop_before_commit", times=1)
    with pytest.raises(LOST):
        provider.refund(order, "key-early-drop")
    assert provider.refunds_of(order) == []
    made = provider.refund(order, "key-early-drop")
    assert "Idempotent-Replayed" not in made.last_response.headers


@pytest.mark.parametrize(
    ("fault", "error", "status", "code"),
    [
        ({}, stripe.InvalidRequestError, 400, "charge_disputed"),
        ({"code": "balance_insufficient"}, stripe.InvalidRequestError, 400, "balance_insufficient"),
        ({"code": "expired_card"}, stripe.CardError, 402, "expired_card"),
        ({"code": "account_closed", "status": 403}, stripe.PermissionError, 403, "account_closed"),
    ],
)
def test_a_rejection_has_no_effect_and_is_replayed(provider, order, fault, error, status, code):
    key = f"key-{order['id']}"
    provider.fault("reject", times=1, **fault)
    for replayed in (None, "true"):
        with pytest.raises(error) as refused:
            provider.refund(order, key)
        assert (refused.value.http_status, refused.value.error.code) == (status, code)
        assert refused.value.headers.get("Idempotent-Replayed") == replayed
    assert provider.refunds_of(order) == []


@pytest.mark.parametrize(
    ("status", "refunded"), [("succeeded", 1_000), ("failed", 0), ("canceled", 0), ("requires_action", 1_000)]
)
def test_a_pending_refund_settles_later(provider, order, wait_for, status, refunded):
    client = provider.stripe()
    provider.fault("pending_then", seconds=0.5, status=status, times=1)
    made = provider.refund(order)
    assert (made.status, made.pending_reason) == ("pending", "processing")
    assert client.v1.charges.retrieve(order["charge"]).amount_refunded == 1_000
    wait_for(lambda: client.v1.refunds.retrieve(made.id).status == status)
    assert client.v1.charges.retrieve(order["charge"]).amount_refunded == refunded
    assert [row["status"] for row in provider.refunds_of(order)] == [status]


def test_a_bounce_gives_the_amount_back(provider, order, wait_for):
    client = provider.stripe()
    provider.fault("bounce_after", seconds=0.6, times=1)
    made = provider.refund(order, amount=10_000)
    assert made.status == "succeeded"
    assert client.v1.charges.retrieve(order["charge"]).refunded
    bounced = wait_for(lambda: (now := client.v1.refunds.retrieve(made.id)).status == "failed" and now)
    assert bounced.failure_reason == "expired_or_canceled_card"
    assert bounced.failure_balance_transaction.startswith("txn_")
    charge = client.v1.charges.retrieve(order["charge"])
    assert (charge.amount_refunded, charge.refunded) == (0, False)
    assert provider.refund(order, amount=10_000).status == "succeeded"


def test_rate_limited_has_no_effect_and_keeps_nothing(provider, order):
    provider.fault("rate_limited", times=1)
    with pytest.raises(stripe.RateLimitError) as refused:
        provider.refund(order, "key-limited")
    assert (refused.value.http_status, refused.value.headers["Retry-After"]) == (429, "1")
    assert provider.refunds_of(order) == []
    assert provider.refund(order, "key-limited").status == "succeeded"


def test_auth_failed_meets_look_ups_too_until_its_writes_are_used_up(provider, order):
    client = provider.stripe()
    provider.fault("auth_failed", times=1)
    for _ in range(3):
        with pytest.raises(stripe.AuthenticationError) as refused:
            client.v1.charges.retrieve(order["charge"])
        assert refused.value.error.code == "api_key_expired"
    with pytest.raises(stripe.AuthenticationError):
        provider.refund(order)
    assert provider.refunds_of(order) == []
    assert client.v1.charges.retrieve(order["charge"]).id == order["charge"]


def test_empty_200_has_no_effect_and_keeps_nothing(provider, order):
    provider.fault("empty_200", times=1)
    with pytest.raises(stripe.APIError) as empty:
        provider.refund(order, "key-empty")
    assert empty.value.http_status == 200
    assert provider.refunds_of(order) == []
    assert provider.refund(order, "key-empty").status == "succeeded"


def test_a_wrong_amount_stands_in_the_answer_only(provider, order):
    provider.fault("wrong_amount", times=1)
    told = provider.refund(order, "key-wrong")
    assert told.amount == 1_100
    assert provider.refund(order, "key-wrong").amount == 1_100  # what is stored is replayed, a lie too
    assert provider.stripe().v1.refunds.retrieve(told.id).amount == 1_000
    assert [row["amount"] for row in provider.refunds_of(order)] == [1_000]


def test_unreachable_really_closes_the_payments_port(provider, order):
    client = provider.stripe(provider.payments_url)
    address = ("127.0.0.1", int(provider.payments_url.rpartition(":")[2]))
    before = provider.books()["calls"]
    with socket.create_connection(address, timeout=1) as live:
        live.sendall(b"GET /v1/refunds HTTP/1.1\r\nHost: payments\r\n\r\n")
        assert live.recv(65536).startswith(b"HTTP/1.1 401")
        provider.fault("unreachable")
        assert live.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with pytest.raises(stripe.APIConnectionError, match="refused"):
        provider.refund(order, "key-unreachable", client=client)
    assert provider.books()["calls"] == before
    provider.fault("ok")
    assert provider.refund(order, "key-unreachable", client=client).amount == 1_000


def test_unreachable_drops_payments_on_the_main_port_and_leaves_the_control_door(provider, order, shop):
    provider.fault("unreachable")
    before = provider.books()["calls"]
    with pytest.raises(httpx.RemoteProtocolError):
        provider.http.get("/v1/refunds")
    with pytest.raises(LOST):
        provider.refund(order)
    assert provider.books()["calls"] == before
    assert provider.http.get("/_faults").json()["mode"] == "unreachable"
    assert (
        shop.get(f"/orders/{order['id']}").status_code == 200
    )  # an outage of the payments is not one of the shop
    assert provider.new_order()["id"]


def test_unreachable_loses_a_commit_that_was_on_its_way(provider, order, wait_for):
    provider.fault("slow", seconds=0.8, times=1)
    before = provider.books()["calls"]
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(provider.refund, order, client=provider.stripe(provider.payments_url))
        wait_for(lambda: provider.books()["calls"] > before)
        provider.fault("unreachable")
        with pytest.raises(LOST):
            sent.result()
    assert provider.refunds_of(order) == []
    wait_for(lambda: provider.refunds_of(order))


def test_the_payments_port_can_be_closed_and_opened_many_times(provider, order):
    client = httpx.Client(
        base_url=provider.payments_url, headers={"Authorization": "Bearer sk_test_conformance"}
    )
    for _ in range(10):
        provider.fault("unreachable")
        with pytest.raises((httpx.RemoteProtocolError, httpx.ConnectError)):
            client.get("/v1/refunds")
        provider.fault("ok")
        assert client.get("/v1/refunds").status_code == 200
    client.close()


def test_nobody_is_given_the_port_while_it_refuses(provider):
    provider.fault("unreachable")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections are no hindrance
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(provider.payments_url.rpartition(":")[2])))


def test_times_are_used_up_by_writes_and_not_by_look_ups(provider, order):
    provider.fault("drop_before_commit", times=2)
    provider.stripe().v1.refunds.list({"charge": order["charge"]})
    for _ in range(2):
        with pytest.raises(LOST):
            provider.refund(order)
        provider.stripe().v1.charges.retrieve(order["charge"])
    assert provider.refund(order).status == "succeeded"


def test_without_times_a_fault_stays_until_it_is_changed(provider, order):
    provider.fault("drop_before_commit")
    for _ in range(4):
        with pytest.raises(LOST):
            provider.refund(order)
    provider.fault("rate_limited")
    with pytest.raises(stripe.RateLimitError):
        provider.refund(order)


def test_abilities_stay_on_beside_the_modes_and_ok_clears_all(provider, order):
    provider.fault("no_key_support")
    provider.fault("lookup_lag", seconds=30)
    provider.fault("commit_then_drop", times=1)
    with pytest.raises(LOST):
        provider.refund(order, "key-combined")
    provider.refund(order, "key-combined")
    assert len(provider.refunds_of(order)) == 2
    assert provider.stripe().v1.refunds.list({"charge": order["charge"]}).data == []
    shown = provider.http.get("/_faults").json()
    assert (shown["mode"], shown["abilities"]) == ("ok", {"no_key_support": True, "lookup_lag": 30})
    provider.fault("ok")
    assert provider.http.get("/_faults").json()["abilities"] == {}
    assert len(provider.stripe().v1.refunds.list({"charge": order["charge"]}).data) == 2


def test_lookup_lag_hides_what_is_young(provider, order):
    client = provider.stripe()
    provider.fault("lookup_lag", seconds=30)
    made = provider.refund(order)
    assert client.v1.refunds.list({"charge": order["charge"]}).data == []
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.v1.refunds.retrieve(made.id)
    assert refused.value.code == "resource_missing"
    assert client.v1.charges.retrieve(order["charge"]).amount_refunded == 0
    with pytest.raises(stripe.InvalidRequestError, match="unrefunded"):
        provider.refund(order, amount=9_500)  # a write sees the truth
    provider.sql("UPDATE refunds SET created_at = created_at - 31 WHERE id = ?", made.id)
    assert client.v1.refunds.retrieve(made.id).id == made.id
    assert [refund.id for refund in client.v1.refunds.list({"charge": order["charge"]}).data] == [made.id]
    assert client.v1.charges.retrieve(order["charge"]).amount_refunded == 1_000


def test_a_timed_ability_is_turned_off_with_zero_seconds(provider):
    provider.fault("lookup_lag", seconds=5)
    assert provider.fault("lookup_lag", seconds=0)["abilities"] == {}


def test_reset_clears_faults_and_never_money(provider, order):
    provider.refund(order)
    provider.fault("no_key_support")
    provider.fault("unreachable")
    shown = provider.http.post("/_reset").json()
    assert (shown["mode"], shown["abilities"]) == ("ok", {})
    assert len(provider.refunds_of(order)) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"mode": "earthquake"},
        {},
        {"mode": "slow", "seconds": -1},
        {"mode": "slow", "seconds": "long"},
        {"mode": "slow", "times": 0},
        {"mode": "slow", "times": 1.5},
        {"mode": "slow", "door": "back"},
        {"mode": "pending_then", "status": "great"},
        {"mode": "reject", "status": 500},
        {"mode": "reject", "code": 7},
        {"mode": "wrong_amount", "door": "shop"},
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_the_list_of_modes(provider, wanted):
    answer = provider.http.post("/_faults", json=wanted)
    assert answer.status_code == 400
    assert {"commit_then_drop", "lookup_lag"} < set(answer.json()["error"]["modes"])
    assert provider.http.get("/_faults").json()["mode"] == "ok"


def test_a_fault_may_be_meant_for_one_door(provider, order, shop):
    provider.fault("rate_limited", door="shop")
    assert provider.refund(order).status == "succeeded"
    assert shop.post("/notes", {"text": "x"}).status_code == 429
