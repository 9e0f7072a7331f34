"""The shop: who may see and do what, effects found by operation id, and its writes under fault."""

import functools
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest


def told(answer):
    return answer.status_code, answer.json()["error"]["code"]


def for_customer(signer, customer, tenant="acme"):
    return signer.token(tenant, sub=f"customer:{customer}")


# --- the catalogue


def test_the_demo_orders_are_there_from_the_first_start(own_provider):
    listed = own_provider().http.get("/_orders").json()
    by_id = {order["id"]: order for order in listed}
    assert [by_id[f"A-100{number}"]["amount_minor"] for number in (1, 2, 3, 4)] == [
        12_900,
        48_900,
        2_490,
        259_900,
    ]
    more = [by_id[f"A-{number}"]["amount_minor"] for number in range(1005, 1025)]
    assert sum(amount < 5_000 for amount in more) == 10
    assert sum(6_000 <= amount <= 19_000 for amount in more) == 10
    assert [order["id"] for order in listed if order["tenant"] == "globex"] == [
        f"G-{2001 + n}" for n in range(10)
    ]
    assert set(by_id["A-1001"]) == {"id", "tenant", "charge", "amount_minor", "currency", "customer"}
    assert len({order["charge"] for order in listed}) == len(listed) == 34


def test_more_orders_go_on_where_the_last_ended(own_provider):
    provider = own_provider()
    made = provider.http.post("/_orders", json={"tenant": "acme", "count": 3, "amount_minor": 2_490})
    assert made.status_code == 201
    assert [order["id"] for order in made.json()] == ["A-1025", "A-1026", "A-1027"]
    charge = provider.stripe().v1.charges.retrieve(made.json()[0]["charge"])
    assert (charge.amount, charge.currency, charge.metadata["order"]) == (2_490, "eur", "A-1025")
    assert provider.http.get("/_orders", params={"tenant": "acme"}).json()[-3:] == made.json()
    [other] = provider.http.post("/_orders", json={"tenant": "initech"}).json()
    assert (other["id"], other["tenant"]) == ("initech-1001", "initech")


@pytest.mark.parametrize(
    "wanted",
    [{}, {"tenant": "Acme!"}, {"tenant": "acme", "count": 0}, {"tenant": "acme", "amount_minor": 0}, []],
)
def test_orders_that_cannot_be_are_refused(provider, wanted):
    assert told(provider.http.post("/_orders", json=wanted)) == (400, "bad_request")


# --- look-ups


def test_an_order_shows_its_lines_customer_shipment_and_charge(shop, provider):
    answer = shop.get("/orders/A-1001").json()
    charge = next(order for order in provider.http.get("/_orders").json() if order["id"] == "A-1001")[
        "charge"
    ]
    assert (answer["status"], answer["charge"], answer["customer"]) == ("delivered", charge, "A-C1001")
    assert (answer["amount_minor"], answer["currency"]) == (12_900, "EUR")
    [line] = answer["lines"]
    assert (line["id"], line["amount_minor"], line["quantity"]) == ("A-1001-1", 12_900, 1)
    assert answer["shipment"] == shop.get("/orders/A-1001/shipment").json()
    assert answer["shipment"]["status"] == "delivered"
    waiting = shop.get("/orders/A-1002").json()["shipment"]
    assert (waiting["status"], waiting["tracking"], waiting["delivered_at"]) == ("preparing", None, None)
    assert shop.get("/orders/A-1008").json()["status"] == "in_transit"


def test_a_customer_has_a_name_and_an_address(shop):
    customer = shop.get("/customers/A-C1001").json()
    assert set(customer) == {"id", "name", "email"}
    assert customer["email"].endswith("@acme.example")


def test_the_refund_policy_states_facts_and_terms(shop, provider):
    policy = shop.get("/refund-policy?order=A-1001").json()
    assert (policy["refundable"], policy["window_days"], policy["damaged_items_accepted"]) == (True, 90, True)
    assert policy["delivered_at"] == shop.get("/orders/A-1001/shipment").json()["delivered_at"]
    old = provider.new_order()
    provider.sql("UPDATE orders SET delivered_at = delivered_at - 91 * 86400 WHERE id = ?", old["id"])
    policy = shop.get(f"/refund-policy?order={old['id']}").json()
    assert (policy["refundable"], policy["reason"]) == (False, "it was delivered more than 90 days ago")


def test_orders_are_listed_for_the_tenant_and_for_one_customer(shop, signer):
    page = shop.get("/orders?limit=3").json()
    assert ([order["id"] for order in page["orders"]], page["has_more"]) == (
        ["A-1001", "A-1002", "A-1003"],
        True,
    )
    own = shop.get("/orders", for_customer(signer, "A-C1002")).json()
    assert ([order["id"] for order in own["orders"]], own["has_more"]) == (["A-1002"], False)
    assert told(shop.get("/orders?limit=0")) == (400, "invalid_parameter")


# --- identity


def test_without_a_good_token_nothing_is_answered(shop, provider, signer, signer_of):
    stranger = signer_of(signer.jwks)
    unknown = signer_of(signer.jwks, kid="key-unknown")
    bad = [
        "",
        "not.a.token",
        stranger.token(),
        unknown.token(),
        signer.token(exp=int(time.time()) - 10),
        signer.token(iat=int(time.time()) + 60),
        signer.token(aud="payments"),
        signer.token(typ="JWT"),
        signer.token(tctx={}),
        *(signer.token(drop=claim) for claim in ("iss", "iat", "exp", "aud", "txn", "sub", "scope", "tctx")),
    ]
    for token in bad:
        answer = httpx.get(
            f"{provider.shop_url}/orders/A-1001", headers={"Txn-Token": token} if token else {}
        )
        assert told(answer) == (401, "invalid_identity_token"), token


def test_another_tenants_order_does_not_exist(shop, signer):
    other = signer.token("globex", sub="tenant:globex")
    for path in ("/orders/A-1001", "/orders/A-1001/shipment", "/refund-policy?order=A-1001"):
        assert told(shop.get(path, other)) == (404, "no_such_order")
    assert told(shop.get("/customers/A-C1001", other)) == (404, "no_such_customer")
    assert told(shop.post("/orders/A-1001/cancel", token=other)) == (404, "no_such_order")
    assert shop.get("/orders/G-2001", other).status_code == 200


def test_another_customers_order_is_forbidden(shop, signer):
    token = for_customer(signer, "A-C1002")
    assert shop.get("/orders/A-1002", token).status_code == 200
    for path in (
        "/orders/A-1001",
        "/orders/A-1001/shipment",
        "/refund-policy?order=A-1001",
        "/orders/A-1001/cancellation",
    ):
        assert told(shop.get(path, token)) == (403, "not_your_order")
    assert told(shop.post("/orders/A-1001/cancel", token=token)) == (403, "not_your_order")
    assert told(shop.post("/notes", {"text": "x", "order": "A-1001"}, token=token)) == (403, "not_your_order")
    assert told(shop.get("/customers/A-C1001", token)) == (403, "not_you")
    assert shop.get("/customers/A-C1002", token).status_code == 200


def test_a_person_of_the_tenant_sees_all_its_orders(shop, signer):
    assert shop.get("/orders/A-1001", signer.token(sub="user:7")).status_code == 200


def test_a_token_for_one_target_or_operation_opens_no_other(shop, signer):
    token = signer.token(tctx={"tenant": "acme", "target": "order:A-1001", "operation_id": "op_1"})
    assert shop.get("/orders/A-1001", token).status_code == 200
    assert told(shop.get("/orders/A-1002", token)) == (403, "other_target")
    answer = shop.post("/orders/A-1001/cancel", operation="op_2", token=token)
    assert told(answer) == (403, "other_operation")


def test_a_new_key_is_found_and_a_known_one_needs_nobody(own_provider, tmp_path, shop_of, signer_of):
    first = signer_of(tmp_path / "jwks.json")
    first.publish()
    provider = own_provider(jwks=str(first.jwks))
    assert shop_of(provider, first).get("/orders/A-1001").status_code == 200
    second = signer_of(first.jwks, kid="key-2")
    second.publish(first)
    assert shop_of(provider, second).get("/orders/A-1001").status_code == 200
    first.jwks.unlink()
    assert shop_of(provider, first).get("/orders/A-1001").status_code == 200
    answer = shop_of(provider, signer_of(first.jwks, kid="key-3")).get("/orders/A-1001")
    assert told(answer) == (503, "identity_keys_unavailable")


def test_keys_are_read_from_an_address_too(own_provider, tmp_path, shop_of, signer_of):
    signer = signer_of(tmp_path / "jwks.json")
    signer.publish()
    served = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    )
    threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    provider = own_provider(jwks=f"http://127.0.0.1:{served.server_port}/jwks.json")
    assert shop_of(provider, signer).get("/orders/A-1001").status_code == 200
    served.shutdown()
    served.server_close()
    assert shop_of(provider, signer).get("/orders/A-1001").status_code == 200


def test_a_service_key_is_wanted_when_one_is_set(own_provider, shop_of, signer):
    shop = shop_of(own_provider("--shop-key", "shop_key_1"), signer)
    assert told(shop.get("/orders/A-1001")) == (401, "invalid_service_key")
    answer = shop.call("GET", "/orders/A-1001", Authorization="Bearer shop_key_1")
    assert answer.status_code == 200


# --- cancel and note


def test_a_cancelled_order_is_found_by_everyone_who_looks(shop, provider, signer):
    order = provider.new_order()
    made = shop.post(f"/orders/{order['id']}/cancel", {"reason": "not_wanted"}, "key-cancel", "op_7")
    assert made.status_code == 201
    cancellation = made.json()
    assert cancellation["id"].startswith("can_")
    assert (cancellation["order"], cancellation["status"]) == (order["id"], "cancelled")
    assert (cancellation["operation_id"], cancellation["goods"]) == ("op_7", "to_be_returned")
    assert shop.get(f"/orders/{order['id']}/cancellation").json() == cancellation
    assert shop.get(f"/orders/{order['id']}").json()["status"] == "cancelled"
    assert provider.books(order=order["id"])["cancellations"] == [
        {
            "id": cancellation["id"],
            "order": order["id"],
            "idempotency_key": "key-cancel",
            "operation_id": "op_7",
        }
    ]


def test_the_operation_of_the_token_is_kept_when_no_header_names_one(shop, provider, signer):
    order = provider.new_order()
    token = signer.token(tctx={"tenant": "acme", "operation_id": "op_8"})
    assert shop.post(f"/orders/{order['id']}/cancel", token=token).json()["operation_id"] == "op_8"


def test_an_order_is_cancelled_once(shop, provider):
    path = f"/orders/{provider.new_order()['id']}/cancel"
    first = shop.post(path, {"reason": "x"}, "key-first")
    again = shop.post(path, {"reason": "x"}, "key-first")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert told(shop.post(path, {"reason": "y"}, "key-first")) == (400, "idempotency_mismatch")
    other = shop.post(path, {"reason": "x"}, "key-second")
    assert told(other) == (409, "already_cancelled")
    assert other.json()["error"]["cancellation"] == first.json()
    assert shop.post(path, {"reason": "x"}, "key-second").headers["Idempotent-Replayed"] == "true"


def test_a_cancellation_is_taken_back_once_and_the_order_may_be_cancelled_anew(shop, provider, signer):
    order = provider.new_order()
    path, status = f"/orders/{order['id']}", lambda: shop.get(path).json()["status"]
    first = shop.post(f"{path}/cancel", operation="op_1").json()
    wanted = {"cancellation": first["id"]}
    made = shop.post(f"{path}/reopen", wanted, "key-reopen", "op_2")
    assert (made.status_code, made.json()["cancellation"], status()) == (201, first["id"], "delivered")
    assert shop.get(f"{path}/reopenings?cancellation={first['id']}").json() == {"reopenings": [made.json()]}
    assert shop.post(f"{path}/reopen", wanted, "key-reopen").headers["Idempotent-Replayed"] == "true"
    again = shop.post(f"{path}/reopen", wanted)
    assert told(again) == (409, "already_reopened")
    assert again.json()["error"]["reopening"] == made.json()
    assert told(shop.get(f"{path}/cancellation")) == (404, "not_cancelled")
    assert shop.get(f"{path}/cancellation?operation_id=op_1").json() == first
    second = shop.post(f"{path}/cancel", operation="op_3").json()
    assert (status(), shop.get(f"{path}/cancellation").json()) == ("cancelled", second)
    assert told(shop.post(f"{path}/reopen", wanted)) == (409, "already_reopened")
    assert status() == "cancelled"
    known = provider.books(order=order["id"])
    assert [each["id"] for each in known["cancellations"]] == [first["id"], second["id"]]
    assert known["reopenings"] == [
        {"id": made.json()["id"], "order": order["id"], "cancellation": first["id"], "idempotency_key": "key-reopen",
         "operation_id": "op_2"}
    ]  # fmt: skip
    changes = shop.get("/changes?limit=200").json()["changes"]
    own = [(each["kind"], each["cancellation"]) for each in changes if each["order"] == order["id"]]
    assert own == [("cancellation", None), ("reopening", first["id"]), ("cancellation", None)]


def test_what_is_not_cancelled_by_the_cancellation_that_is_named_is_not_reopened(shop, provider, signer):
    order, other = provider.new_order(), provider.new_order()
    named = {"cancellation": shop.post(f"/orders/{other['id']}/cancel").json()["id"]}
    path = f"/orders/{order['id']}/reopen"
    assert told(shop.post(path, named)) == (409, "not_cancelled")
    shop.post(f"/orders/{order['id']}/cancel")
    assert told(shop.post(path, named)) == (409, "not_cancelled")
    assert told(shop.post(path)) == (400, "invalid_parameter")
    assert told(shop.post("/orders/A-9999/reopen", named)) == (404, "no_such_order")
    assert told(shop.post(path, named, token=signer.token("globex"))) == (404, "no_such_order")
    assert told(shop.post(path, named, token=for_customer(signer, "A-C1002"))) == (403, "not_your_order")
    assert provider.books(order=order["id"])["reopenings"] == []


def test_the_key_of_one_orders_cancellation_cancels_no_other(shop, provider):
    first, second = provider.new_order(), provider.new_order()
    assert shop.post(f"/orders/{first['id']}/cancel", key="key-one-order").status_code == 201
    answer = shop.post(f"/orders/{second['id']}/cancel", key="key-one-order")
    assert told(answer) == (400, "idempotency_mismatch")
    assert effects(provider, second) == 0


def test_an_order_that_stands_has_no_cancellation(shop):
    assert told(shop.get("/orders/A-1004/cancellation")) == (404, "not_cancelled")
    assert told(shop.get("/orders/A-9999/cancellation")) == (404, "no_such_order")


def test_notes_are_kept_and_found_by_operation(shop, provider, signer):
    order = provider.new_order()
    for number in (1, 2):
        body = {"text": f"note {number}", "order": order["id"]}
        made = shop.post("/notes", body, operation=f"op_{order['id']}_{number}")
        assert (made.status_code, made.json()["text"]) == (201, f"note {number}")
    of_order = shop.get(f"/notes?order={order['id']}").json()
    assert ([note["text"] for note in of_order["notes"]], of_order["has_more"]) == (
        ["note 1", "note 2"],
        False,
    )
    [found] = shop.get(f"/notes?operation_id=op_{order['id']}_2").json()["notes"]
    assert (found["text"], found["author"], found["order"]) == ("note 2", "tenant:acme", order["id"])
    [last] = shop.get(f"/notes?order={order['id']}&limit=1").json()["notes"]
    assert last["text"] == "note 2"
    assert shop.get(f"/notes?order={order['id']}", signer.token("globex")).json()["notes"] == []
    assert (
        len(shop.get(f"/notes?order={order['id']}", for_customer(signer, order["customer"])).json()["notes"])
        == 2
    )
    assert shop.get("/notes", for_customer(signer, "A-C1004")).json()["notes"] == []
    assert len(provider.books(order=order["id"])["notes"]) == 2


def test_two_notes_with_the_same_words_are_two_notes_unless_they_share_a_key(shop, provider):
    order = provider.new_order()
    body = {"text": "again", "order": order["id"]}
    for key in ("note-key-1", "note-key-2", "note-key-2"):
        assert shop.post("/notes", body, key + order["id"]).status_code == 201
    assert len(provider.books(order=order["id"])["notes"]) == 2


def test_the_same_key_of_two_tenants_is_two_keys(shop, signer):
    first = shop.post("/notes", {"text": "x"}, "key-shared")
    second = shop.post("/notes", {"text": "x"}, "key-shared", token=signer.token("globex"))
    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"text": 5}, {"text": "x" * 4001}, {"text": "x", "order": 7}, []]
)
def test_a_note_that_cannot_be_is_refused(shop, body):
    answer = shop.call("POST", "/notes", body=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_parameter", "invalid_json")


# --- faults


def cancel(shop, provider, key):
    order = provider.new_order()
    path = f"/orders/{order['id']}/cancel"
    return order, lambda: shop.post(path, {"reason": "x"}, key, "op_f")


def effects(provider, order):
    return len(provider.books(order=order["id"])["cancellations"])


@pytest.mark.parametrize(
    ("mode", "lost", "status", "effects_after", "replayed"),
    [
        ("slow", False, 201, 1, True),
        ("slow_after", False, 201, 1, True),
        ("commit_then_drop", True, None, 1, True),
        ("commit_then_500", False, 500, 1, True),
        ("drop_before_commit", True, None, 0, False),
        ("reject", False, 422, 0, True),
        ("rate_limited", False, 429, 0, False),
        ("auth_failed", False, 401, 0, False),
        ("empty_200", False, 200, 0, False),
        ("unreachable", True, None, 0, False),
    ],
)
def test_the_faults_meet_the_shops_writes(shop, provider, mode, lost, status, effects_after, replayed):
    order, send = cancel(shop, provider, f"key-{mode}")
    provider.fault(mode, seconds=0.1, times=1, door="shop")
    if lost:
        with pytest.raises(httpx.TransportError):
            send()
    else:
        assert send().status_code == status
    assert effects(provider, order) == effects_after
    provider.fault("ok")
    again = send()
    assert ("Idempotent-Replayed" in again.headers) is replayed
    assert again.status_code == (status if status in (500, 422) else 201)
    assert effects(provider, order) == (0 if mode == "reject" else 1)


def test_faults_of_money_pass_the_shop_by(shop, provider, order):
    for mode in ("pending_then", "bounce_after", "wrong_amount"):
        provider.fault(mode, times=1, seconds=30)
        assert shop.post("/notes", {"text": "x"}).status_code == 201
        assert provider.http.get("/_faults").json()["mode"] == mode


def test_an_outage_of_the_shop_closes_its_port_and_no_other(shop, provider, order):
    provider.fault("unreachable", door="shop")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{provider.shop_url}/orders/A-1001")
    assert provider.refund(order, client=provider.stripe(provider.payments_url)).status == "succeeded"
    provider.fault("ok")
    assert shop.get("/orders/A-1001").status_code == 200


def test_revoked_access_meets_the_shops_look_ups_when_it_is_meant_for_the_shop(shop, provider):
    provider.fault("auth_failed")
    assert shop.get("/orders/A-1001").status_code == 200
    provider.fault("auth_failed", door="shop")
    assert told(shop.get("/orders/A-1001")) == (401, "access_revoked")


def test_the_abilities_hold_for_the_shop(shop, provider):
    order = provider.new_order()
    provider.fault("lookup_lag", seconds=30)
    provider.fault("no_key_support")
    note = {"text": "x", "order": order["id"]}
    for _ in range(2):
        shop.post("/notes", note, "key-ignored")
    shop.post(f"/orders/{order['id']}/cancel")
    assert shop.get(f"/notes?order={order['id']}").json()["notes"] == []
    assert told(shop.get(f"/orders/{order['id']}/cancellation")) == (404, "not_cancelled")
    assert shop.get(f"/orders/{order['id']}").json()["status"] == "delivered"
    for table in ("notes", "cancellations"):
        provider.sql(f"UPDATE {table} SET created_at = created_at - 31 WHERE order_id = ?", order["id"])
    assert len(shop.get(f"/notes?order={order['id']}").json()["notes"]) == 2
    assert shop.get(f"/orders/{order['id']}").json()["status"] == "cancelled"


def test_calls_to_the_shop_are_counted_apart(shop, provider):
    before = provider.books()
    shop.post("/notes", {"text": "x"})
    shop.post("/orders/A-9999/cancel")
    shop.get("/notes")
    after = provider.books()
    assert (after["shop_calls"] - before["shop_calls"], after["calls"] - before["calls"]) == (2, 0)
