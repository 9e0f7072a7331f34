"""The payments API: charges and refunds in the shape of Stripe's v1, as far as its SDK needs them.

Under a key are stored: every success, what the state of a charge refuses (over-refund, already refunded), a scripted
rejection and a scripted 500. Not stored: what fails before the execution (authentication, parameters, a charge that
does not exist, a rate limit, a twin in flight).
"""

import hashlib
import hmac
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from sqlite3 import Connection, Row
from typing import Any

from agentops.demo.provider import books
from agentops.demo.provider import stripe_wire as wire
from agentops.demo.provider.books import Books, insert, new_id
from agentops.demo.provider.faults import Fault, Faults, Mode
from agentops.demo.provider.server import Drop, Reply, Request, json_reply
from agentops.demo.provider.stripe_params import Form, page, required
from agentops.demo.provider.webhooks import API_VERSION, announce
from agentops.demo.provider.writes import Refused, Write, Writer

REFUND_REASONS = ("duplicate", "fraudulent", "requested_by_customer")
MONEY_WRITES = (["v1", "refunds"], ["v1", "charges"])
WRONG_BY_MINOR = 100


@dataclass(frozen=True)
class RefundWish:
    charge: Row
    amount: int | None  # None: all that is left
    reason: str | None
    metadata: dict[str, str]


@dataclass(frozen=True)
class ChargeWish:
    amount: int
    currency: str
    customer: str | None
    description: str | None
    metadata: dict[str, str]


class Payments:
    def __init__(self, ledger: Books, faults: Faults, key: str, changed: Callable[[], None]) -> None:
        self._books = ledger
        self._faults = faults
        self._writer = Writer(ledger, faults, wire.PaymentRefusals())
        self._key = key
        self._changed = changed  # there is something to settle or to announce

    def __call__(self, request: Request) -> Reply:
        steps = request.path.strip("/").split("/")
        writes = request.method == "POST" and (steps in MONEY_WRITES or steps[:-1] == ["v1", "refunds"])
        fault = self._faults.take("payments") if writes else self._faults.at_lookup("payments")
        if fault.mode is Mode.UNREACHABLE:
            raise Drop
        if writes and steps in MONEY_WRITES:
            self._books.count("payments")
        try:
            self._authenticate(request, fault)
            reply = self._write(request, steps, fault) if writes else self._look_up(request, steps)
        except Refused as refusal:
            reply = refusal.reply
        about = {
            "Request-Id": new_id("req_", 14),
            "Stripe-Version": request.headers.get("Stripe-Version", API_VERSION),
        }
        if writes and (key := request.headers.get("Idempotency-Key")):
            about["Idempotency-Key"] = key
        return replace(reply, headers={**about, **reply.headers})

    def _authenticate(self, request: Request, fault: Fault) -> None:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise wire.unauthorized(wire.AUTH_HELP)
        if fault.mode is Mode.AUTH_FAILED:
            raise wire.unauthorized(f"Expired API Key provided: {wire.masked(key)}", "api_key_expired")
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            raise wire.unauthorized(f"Invalid API Key provided: {wire.masked(key)}")

    # --- writes

    def _write(self, request: Request, steps: list[str], fault: Fault) -> Reply:
        form = Form.of_body(request.body)
        key = request.headers.get("Idempotency-Key") or None
        fingerprint = hashlib.sha256(json.dumps(sorted(form.pairs)).encode()).hexdigest()
        common = ("payments", key, f"POST {request.path}", fingerprint)
        reply: Reply
        match steps:
            case ["v1", "refunds"]:
                reply = self._writer.run(
                    Write(
                        *common,
                        lambda: self._refund_wish(form),
                        lambda db, wish: _refund(db, wish, key, fault),
                    ),
                    fault,
                )
            case ["v1", "charges"]:
                reply = self._writer.run(Write(*common, lambda: _charge_wish(form), _charge), fault)
            case _:
                refund_id = steps[-1]
                reply = self._writer.run(
                    Write(
                        *common, lambda: _metadata_wish(form), lambda db, wish: _relabel(db, refund_id, wish)
                    ),
                    fault,
                )
        self._changed()
        return reply

    def _refund_wish(self, form: Form) -> RefundWish:
        charge, intent = form.text("charge"), form.text("payment_intent")
        amount, reason, currency = form.integer("amount"), form.text("reason"), form.text("currency")
        metadata = form.metadata()
        form.done()
        if charge is None and intent is None:
            message = (
                "One of the following params should be provided for this request: payment_intent or charge."
            )
            raise Refused(wire.error(400, message, code="parameter_missing"))
        if charge is not None and intent is not None:
            message = "You may only specify one of these parameters: payment_intent, charge."
            raise Refused(wire.error(400, message))
        if reason is not None and reason not in REFUND_REASONS:
            message = f"Invalid reason: must be one of {', '.join(REFUND_REASONS)}"
            raise Refused(wire.error(400, message, param="reason"))
        with self._books.reading() as db:
            row = db.execute(
                "SELECT * FROM charges WHERE id = ? OR payment_intent = ?", (charge, intent)
            ).fetchone()
        if row is None and charge is not None:
            raise wire.missing("charge", charge, "charge")
        if row is None:
            raise wire.missing("payment_intent", str(intent), "payment_intent")
        if currency is not None and currency != row["currency"]:
            message = f"The currency of the charge is {row['currency']}, not {currency}."
            raise Refused(wire.error(400, message, param="currency"))
        return RefundWish(row, amount, reason, metadata or {})

    # --- look-ups

    def _look_up(self, request: Request, steps: list[str]) -> Reply:
        visible_until = books.now() - self._faults.lag_seconds
        with self._books.reading() as db:
            match (request.method, steps):
                case ("GET", ["v1", "refunds"]):
                    return _refunds(db, request.query, visible_until)
                case ("GET", ["v1", "charges"]):
                    return _charges(db, request.query, visible_until)
                case ("GET", ["v1", "refunds", refund_id]):
                    row = _refund_row(db, refund_id)
                    if row is None or row["created_at"] > visible_until:
                        raise wire.missing("refund", refund_id, "id")
                    return json_reply(200, wire.refund_object(row))
                case ("GET", ["v1", "charges", charge_id]):
                    row = db.execute("SELECT * FROM charges WHERE id = ?", (charge_id,)).fetchone()
                    if row is None:
                        raise wire.missing("charge", charge_id, "id")
                    return json_reply(
                        200, wire.charge_object(row, refunded_minor(db, charge_id, visible_until))
                    )
                case _:
                    raise wire.no_such_url(request.method, request.path)


def refunded_minor(db: Connection, charge: str, visible_until: float = math.inf) -> int:
    """What was given back or is on its way; a failed refund counts no more."""
    total = db.execute(
        "SELECT coalesce(sum(amount), 0) FROM refunds"
        " WHERE charge = ? AND status NOT IN ('failed', 'canceled') AND created_at <= ?",
        (charge, visible_until),
    )
    return int(total.fetchone()[0])


def add_charge(db: Connection, wish: ChargeWish) -> Row:
    charge_id = new_id("ch_")
    insert(
        db, "charges", id=charge_id, payment_intent="pi_" + charge_id[3:], order_id=wish.metadata.get("order"),
        amount=wish.amount, currency=wish.currency, customer=wish.customer, description=wish.description,
        metadata=json.dumps(wish.metadata), created_at=books.now(),
    )  # fmt: skip
    row: Row = db.execute("SELECT * FROM charges WHERE id = ?", (charge_id,)).fetchone()
    return row


def _charge_wish(form: Form) -> ChargeWish:
    amount, currency = form.integer("amount"), form.text("currency")
    customer, description, metadata = form.text("customer"), form.text("description"), form.metadata()
    form.text("source")  # any card is good here
    form.done()
    return ChargeWish(
        required("amount", amount),
        required("currency", currency).lower(),
        customer,
        description,
        metadata or {},
    )


def _charge(db: Connection, wish: ChargeWish) -> Reply:
    return json_reply(200, wire.charge_object(add_charge(db, wish), 0))


def _refund(db: Connection, wish: RefundWish, key: str | None, fault: Fault) -> Reply:
    charge, currency = wish.charge, wish.charge["currency"]
    left = charge["amount"] - refunded_minor(db, charge["id"])
    if left == 0:
        message = f"Charge {charge['id']} has already been refunded."
        raise Refused(wire.error(400, message, code="charge_already_refunded"))
    amount = left if wish.amount is None else wish.amount
    if amount > left:
        message = (
            f"Refund amount ({wire.amount_text(amount, currency)}) is greater than unrefunded amount on charge "
            f"({wire.amount_text(left, currency)})"
        )
        raise Refused(wire.error(400, message, param="amount"))
    refund_id, created_at = new_id("re_"), books.now()
    later = {Mode.PENDING_THEN: fault.status, Mode.BOUNCE_AFTER: "failed"}.get(fault.mode)
    insert(
        db, "refunds", id=refund_id, charge=charge["id"], payment_intent=charge["payment_intent"],
        amount=amount, currency=currency,
        status="pending" if fault.mode is Mode.PENDING_THEN else "succeeded", reason=wish.reason,
        metadata=json.dumps(wish.metadata), idempotency_key=key, created_at=created_at,
        settles_at=created_at + fault.seconds if later else None, settles_to=later,
    )  # fmt: skip
    refund = wire.refund_object(_refund_row(db, refund_id))
    announce(db, "charge.refunded", wire.charge_object(charge, refunded_minor(db, charge["id"])), key)
    announce(db, "refund.created", refund, key)
    if fault.mode is Mode.WRONG_AMOUNT:
        refund = {**refund, "amount": amount + WRONG_BY_MINOR}
    return json_reply(200, refund)


def _metadata_wish(form: Form) -> dict[str, str] | None:
    metadata = form.metadata()
    form.done()
    return metadata


def _relabel(db: Connection, refund_id: str, wish: dict[str, str] | None) -> Reply:
    row = _refund_row(db, refund_id)
    if row is None:
        raise wire.missing("refund", refund_id, "id")
    if wish is not None:
        merged = {**json.loads(row["metadata"]), **wish} if wish else {}
        kept = json.dumps({name: value for name, value in merged.items() if value})
        db.execute("UPDATE refunds SET metadata = ? WHERE id = ?", (kept, refund_id))
        row = _refund_row(db, refund_id)
        announce(db, "refund.updated", wire.refund_object(row))
    return json_reply(200, wire.refund_object(row))


def _refund_row(db: Connection, refund_id: str) -> Any:
    return db.execute("SELECT * FROM refunds WHERE id = ?", (refund_id,)).fetchone()


def _refunds(db: Connection, query: dict[str, str], visible_until: float) -> Reply:
    rows, has_more = page(db, "refunds", query, ("charge", "payment_intent"), visible_until)
    return wire.list_object("/v1/refunds", [wire.refund_object(row) for row in rows], has_more)


def _charges(db: Connection, query: dict[str, str], visible_until: float) -> Reply:
    rows, has_more = page(db, "charges", query, ("customer", "payment_intent"), math.inf)
    charges = [wire.charge_object(row, refunded_minor(db, row["id"], visible_until)) for row in rows]
    return wire.list_object("/v1/charges", charges, has_more)
