"""The shop: orders, customers, shipments and notes of each tenant, for callers with a signed identity.

Writes take an `Idempotency-Key` as the payments do (bodies compared, errors of the execution replayed) and keep the
`X-Operation-Id`, by which a look-up finds their effect. An order may be cancelled at any time, once until that
cancellation is taken back by a reopening: one that has left the house is to be sent back. Every mode but the three that speak of money works here.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass
from functools import partial
from sqlite3 import Connection, Row
from typing import Any

from agentops.demo.provider import books
from agentops.demo.provider import shop_wire as wire
from agentops.demo.provider.books import Books, insert, new_id
from agentops.demo.provider.faults import Fault, Faults, Mode
from agentops.demo.provider.identity import Caller, Keys, KeysUnavailable, NotIdentified, identify
from agentops.demo.provider.server import Drop, Reply, Request, error_reply, json_reply
from agentops.demo.provider.writes import Refused, Write, Writer

MAX_NOTE_LENGTH, MAX_REASON_LENGTH = 4_000, 1_000
PAGE_LENGTH, MAX_PAGE_LENGTH = 100, 200


@dataclass(frozen=True)
class Call:
    """One authenticated call."""

    request: Request
    caller: Caller
    operation_id: str | None
    visible_until: float

    @property
    def key(self) -> str | None:
        return self.request.headers.get("Idempotency-Key") or None


@dataclass(frozen=True)
class CancelWish:
    order: Row
    reason: str | None


@dataclass(frozen=True)
class ReopenWish:
    order: Row
    cancellation: str


@dataclass(frozen=True)
class NoteWish:
    order_id: str | None
    text: str


class Shop:
    def __init__(self, ledger: Books, faults: Faults, keys: Keys, service_key: str | None) -> None:
        self._books = ledger
        self._faults = faults
        self._writer = Writer(ledger, faults, wire.ShopRefusals())
        self._keys = keys
        self._service_key = service_key

    def __call__(self, request: Request) -> Reply:
        steps = request.path.strip("/").split("/")
        writes = request.method == "POST" and (
            steps == ["notes"] or (steps[0] == "orders" and steps[2:] in (["cancel"], ["reopen"]))
        )
        fault = self._faults.take("shop") if writes else self._faults.at_lookup("shop")
        if fault.mode is Mode.UNREACHABLE:
            raise Drop
        if writes:
            self._books.count("shop")
        try:
            call = self._authenticated(request, fault)
            if writes:
                return self._write(call, steps, fault)
            with self._books.reading() as db:
                return _look_up(db, call, steps)
        except Refused as refusal:
            return refusal.reply

    def _authenticated(self, request: Request, fault: Fault) -> Call:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if self._service_key is not None:
            is_known = hmac.compare_digest(key.encode(), self._service_key.encode())
            if scheme.lower() != "bearer" or not is_known:
                raise _refused(401, "invalid_service_key", "Send the shop's key as Authorization: Bearer.")
        if fault.mode is Mode.AUTH_FAILED:
            raise _refused(401, "access_revoked", "Access was revoked.")
        try:
            caller = identify(request.headers.get("Txn-Token"), self._keys)
        except NotIdentified as why:
            raise _refused(401, "invalid_identity_token", str(why)) from why
        except KeysUnavailable as why:
            raise _refused(503, "identity_keys_unavailable", f"Nothing was done: {why}") from why
        named = request.headers.get("X-Operation-Id") or None
        if named and caller.operation_id and named != caller.operation_id:
            raise _refused(403, "other_operation", "X-Operation-Id is not the operation of the token.")
        return Call(request, caller, named or caller.operation_id, books.now() - self._faults.lag_seconds)

    def _write(self, call: Call, steps: list[str], fault: Fault) -> Reply:
        body = _body(call.request)
        fingerprint = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        common = (f"shop {call.caller.tenant}", call.key, f"POST {call.request.path}", fingerprint)
        if steps == ["notes"]:
            note = Write(*common, partial(self._note_wish, call, body), partial(_add_note, call))
            return self._writer.run(note, fault)
        if steps[2] == "reopen":
            wish = partial(self._reopen_wish, call, body, steps[1])
            return self._writer.run(Write(*common, wish, partial(_reopen, call)), fault)
        cancel = Write(*common, partial(self._cancel_wish, call, body, steps[1]), partial(_cancel, call))
        return self._writer.run(cancel, fault)

    def _cancel_wish(self, call: Call, body: dict[str, Any], order_id: str) -> CancelWish:
        with self._books.reading() as db:
            order = _own_order(db, call.caller, order_id)
        return CancelWish(order, _text(body, "reason", MAX_REASON_LENGTH))

    def _reopen_wish(self, call: Call, body: dict[str, Any], order_id: str) -> ReopenWish:
        cancellation = _text(body, "cancellation", MAX_REASON_LENGTH)
        if cancellation is None:
            raise _refused(400, "invalid_parameter", "cancellation is missing.")
        with self._books.reading() as db:
            return ReopenWish(_own_order(db, call.caller, order_id), cancellation)

    def _note_wish(self, call: Call, body: dict[str, Any]) -> NoteWish:
        order_id, text = _text(body, "order", MAX_REASON_LENGTH), _text(body, "text", MAX_NOTE_LENGTH)
        if text is None:
            raise _refused(400, "invalid_parameter", "text is missing.")
        if order_id is not None:
            with self._books.reading() as db:
                _own_order(db, call.caller, order_id)
        return NoteWish(order_id, text)


def _cancel(call: Call, db: Connection, wish: CancelWish) -> Reply:
    order_id = wish.order["id"]
    if (earlier := _cancellation(db, order_id)) is not None:
        known = wire.cancellation_object(wish.order, earlier)
        raise Refused(
            error_reply(
                409, "already_cancelled", f"Order {order_id} is already cancelled.", cancellation=known
            )
        )
    insert(
        db, "cancellations", id=new_id("can_"), order_id=order_id, reason=wish.reason, requested_by=call.caller.subject,
        idempotency_key=call.key, operation_id=call.operation_id, created_at=books.now(),
    )  # fmt: skip
    return json_reply(201, wire.cancellation_object(wish.order, _cancellation(db, order_id)))


def _reopen(call: Call, db: Connection, wish: ReopenWish) -> Reply:
    """Takes back the cancellation that is named, and no other one: the order has its earlier status again."""
    order_id = wish.order["id"]
    for earlier in _reopenings(db, order_id, wish.cancellation):
        known = wire.reopening_object(wish.order, earlier)
        message = f"Cancellation {wish.cancellation} is already taken back."
        raise Refused(error_reply(409, "already_reopened", message, reopening=known))
    standing = _cancellation(db, order_id)
    if standing is None or standing["id"] != wish.cancellation:
        raise _refused(409, "not_cancelled", f"Order {order_id} is not cancelled by {wish.cancellation}.")
    insert(
        db, "reopenings", id=new_id("reo_"), order_id=order_id, cancellation=wish.cancellation,
        requested_by=call.caller.subject, idempotency_key=call.key, operation_id=call.operation_id,
        created_at=books.now(),
    )  # fmt: skip
    [made] = _reopenings(db, order_id, wish.cancellation)
    return json_reply(201, wire.reopening_object(wish.order, made))


def _add_note(call: Call, db: Connection, wish: NoteWish) -> Reply:
    note_id = new_id("note_")
    insert(
        db, "notes", id=note_id, tenant=call.caller.tenant, order_id=wish.order_id, text=wish.text,
        author=call.caller.subject, idempotency_key=call.key, operation_id=call.operation_id, created_at=books.now(),
    )  # fmt: skip
    return json_reply(
        201, wire.note_object(db.execute("SELECT * FROM notes WHERE id = ?", (note_id,)).fetchone())
    )


def _look_up(db: Connection, call: Call, steps: list[str]) -> Reply:
    caller = call.caller
    match (call.request.method, steps):
        case ("GET", ["orders"]):
            return _orders(db, call)
        case ("GET", ["orders", order_id]):
            order = _own_order(db, caller, order_id)
            return json_reply(200, wire.order_object(order, _cancellation(db, order_id, call.visible_until)))
        case ("GET", ["orders", order_id, "shipment"]):
            return json_reply(200, wire.shipment_object(_own_order(db, caller, order_id)))
        case ("GET", ["orders", order_id, "cancellation"]):
            order = _own_order(db, caller, order_id)
            asked = call.request.query.get("operation_id")
            found = _cancellation(db, order_id, call.visible_until, made_by=asked)
            if found is None:
                raise _refused(404, "not_cancelled", f"Order {order_id} is not cancelled.")
            return json_reply(200, wire.cancellation_object(order, found))
        case ("GET", ["orders", order_id, "reopenings"]):
            order, asked = _own_order(db, caller, order_id), call.request.query.get("cancellation")
            rows = _reopenings(db, order_id, asked, call.visible_until)
            return json_reply(200, {"reopenings": [wire.reopening_object(order, row) for row in rows]})
        case ("GET", ["refund-policy"]):
            order = _own_order(db, caller, call.request.query.get("order", ""))
            return json_reply(200, wire.policy_object(order, books.now()))
        case ("GET", ["customers", customer_id]):
            return json_reply(200, _own_customer(db, caller, customer_id))
        case ("GET", ["notes"]):
            return _notes(db, call)
        case ("GET", ["changes"]):
            return _changes(db, call)
        case _:
            raise _refused(404, "not_found", f"The shop has no {call.request.method} {call.request.path}.")


def _orders(db: Connection, call: Call) -> Reply:
    length = _length(call.request.query)
    rows = db.execute(
        "SELECT * FROM orders WHERE tenant = ?1 AND (?2 IS NULL OR customer = ?2) ORDER BY number LIMIT ?3",
        (call.caller.tenant, call.caller.customer, length + 1),
    ).fetchall()
    orders = [
        wire.order_object(row, _cancellation(db, row["id"], call.visible_until)) for row in rows[:length]
    ]
    return json_reply(200, {"orders": orders, "has_more": len(rows) > length})


def _notes(db: Connection, call: Call) -> Reply:
    """The newest ones, oldest of them first; a customer sees the notes on the own orders and those written as that customer."""
    query = call.request.query
    length = _length(query)
    rows = db.execute(
        "SELECT n.* FROM notes n LEFT JOIN orders o ON o.id = n.order_id WHERE n.tenant = ?1 AND n.created_at <= ?2"
        " AND (?3 IS NULL OR n.operation_id = ?3) AND (?4 IS NULL OR n.order_id = ?4)"
        " AND (?5 IS NULL OR o.customer = ?5 OR n.author = 'customer:' || ?5) ORDER BY n.seq DESC LIMIT ?6",
        (call.caller.tenant, call.visible_until, query.get("operation_id"), query.get("order"),
         call.caller.customer, length + 1),
    ).fetchall()  # fmt: skip
    return json_reply(
        200, {"notes": [wire.note_object(row) for row in rows[:length][::-1]], "has_more": len(rows) > length}
    )


def _changes(db: Connection, call: Call) -> Reply:
    """Every cancellation, reopening and note of a tenant in a window, oldest first; `next` leads on."""
    if call.caller.customer is not None:
        raise _refused(403, "not_you", "A customer has no list of the shop's changes.")
    query = call.request.query
    length = _length(query)
    try:
        since, until = float(query.get("since", 0)), float(query.get("until", "inf"))
        at, _, last = query.get("after", "").partition(" ")
        place = float(at or "-inf")
    except ValueError:
        raise _refused(400, "invalid_parameter", "since and until are seconds; after is a `next`.") from None
    rows = db.execute(
        "SELECT 'cancellation' AS kind, c.id, c.order_id, c.reason, NULL AS cancellation, c.operation_id, c.created_at"
        " FROM cancellations c JOIN orders o ON o.id = c.order_id WHERE o.tenant = ?1"
        " UNION ALL SELECT 'reopening', r.id, r.order_id, NULL, r.cancellation, r.operation_id, r.created_at"
        " FROM reopenings r JOIN orders o ON o.id = r.order_id WHERE o.tenant = ?1"
        " UNION ALL SELECT 'note', id, order_id, NULL, NULL, operation_id, created_at FROM notes WHERE tenant = ?1"
        " ORDER BY created_at, id",
        (call.caller.tenant,),
    ).fetchall()
    seen = [row for row in rows if since <= row["created_at"] <= min(until, call.visible_until)]
    left = [row for row in seen if (row["created_at"], row["id"]) > (place, last)]
    page = left[:length]
    on = f"{page[-1]['created_at']!r} {page[-1]['id']}" if len(left) > length else None
    return json_reply(200, {"changes": [wire.change_object(row) for row in page], "next": on})


def _own_order(db: Connection, caller: Caller, order_id: str) -> Row:
    order: Row | None = db.execute(
        "SELECT * FROM orders WHERE id = ? AND tenant = ?", (order_id, caller.tenant)
    ).fetchone()
    if order is None:
        raise _refused(404, "no_such_order", f"There is no order {order_id}.")
    _require_target(caller, "order", order_id)
    if caller.customer is not None and caller.customer != order["customer"]:
        raise _refused(403, "not_your_order", f"Order {order_id} belongs to another customer.")
    return order


def _own_customer(db: Connection, caller: Caller, customer_id: str) -> dict[str, Any]:
    customer = db.execute(
        "SELECT id, name, email FROM customers WHERE id = ? AND tenant = ?", (customer_id, caller.tenant)
    ).fetchone()
    if customer is None:
        raise _refused(404, "no_such_customer", f"There is no customer {customer_id}.")
    _require_target(caller, "customer", customer_id)
    if caller.customer is not None and caller.customer != customer_id:
        raise _refused(403, "not_you", f"{customer_id} is another customer.")
    return dict(customer)


def _require_target(caller: Caller, kind: str, wanted: str) -> None:
    """A token that was signed for one order opens no other one."""
    signed_kind, _, signed = (caller.target or "").partition(":")
    if signed_kind == kind and signed != wanted:
        raise _refused(403, "other_target", f"The token was signed for {caller.target}.")


def _cancellation(
    db: Connection, order_id: str, visible_until: float | None = None, made_by: str | None = None
) -> Any:
    """The one that stands; but of the operation `made_by` its own one, taken back or not, where it made one."""
    return db.execute(
        "SELECT c.* FROM cancellations c LEFT JOIN reopenings r"
        " ON r.cancellation = c.id AND (?2 IS NULL OR r.created_at <= ?2)"
        " WHERE c.order_id = ?1 AND (?2 IS NULL OR c.created_at <= ?2) AND (r.id IS NULL OR c.operation_id = ?3)"
        " ORDER BY c.operation_id IS ?3 DESC, c.created_at DESC",
        (order_id, visible_until, made_by),
    ).fetchone()


def _reopenings(
    db: Connection, order_id: str, cancellation: str | None, visible_until: float | None = None
) -> list[Row]:
    return db.execute(
        "SELECT * FROM reopenings WHERE order_id = ?1 AND (?2 IS NULL OR cancellation = ?2)"
        " AND (?3 IS NULL OR created_at <= ?3) ORDER BY created_at",
        (order_id, cancellation, visible_until),
    ).fetchall()


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _refused(400, "invalid_json", "The body is not a JSON object.")
    return body


def _text(body: dict[str, Any], name: str, max_length: int) -> str | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= max_length):
        raise _refused(400, "invalid_parameter", f"{name} is a text of 1 to {max_length} characters.")
    return value


def _length(query: dict[str, str]) -> int:
    limit = query.get("limit", str(PAGE_LENGTH))
    if not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE_LENGTH:
        raise _refused(400, "invalid_parameter", f"limit is a number from 1 to {MAX_PAGE_LENGTH}.")
    return int(limit)


def _refused(status: int, code: str, message: str) -> Refused:
    return Refused(error_reply(status, code, message))
