"""Objects and errors of the payments API, as the official SDK reads them."""

import json
import sqlite3
from typing import Any

from agentops.demo.provider.faults import Fault
from agentops.demo.provider.server import Reply, json_reply
from agentops.demo.provider.writes import Refused

CARD_CODES = {"card_declined", "expired_card", "insufficient_funds", "processing_error"}
SYMBOLS = {"eur": "€", "usd": "$", "gbp": "£"}
AUTH_HELP = (
    "You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth "
    "(e.g. 'Authorization: Bearer YOUR_SECRET_KEY')."
)


def charge_object(row: sqlite3.Row, amount_refunded: int) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "charge",
        "amount": row["amount"],
        "amount_captured": row["amount"],
        "amount_refunded": amount_refunded,
        "application": None,
        "application_fee": None,
        "application_fee_amount": None,
        "balance_transaction": "txn_" + row["id"][3:],
        "billing_details": {"address": None, "email": None, "name": None, "phone": None, "tax_id": None},
        "calculated_statement_descriptor": "AGENTOPS DEMO",
        "captured": True,
        "created": int(row["created_at"]),
        "currency": row["currency"],
        "customer": row["customer"],
        "description": row["description"],
        "disputed": False,
        "failure_balance_transaction": None,
        "failure_code": None,
        "failure_message": None,
        "fraud_details": {},
        "livemode": False,
        "metadata": json.loads(row["metadata"]),
        "on_behalf_of": None,
        "outcome": {"network_status": "approved_by_network", "reason": None, "risk_level": "normal",
                    "seller_message": "Payment complete.", "type": "authorized"},
        "paid": True,
        "payment_intent": row["payment_intent"],
        "payment_method": "pm_" + row["id"][3:],
        "payment_method_details": {"card": {"brand": "visa", "country": "DE", "last4": "4242", "funding": "credit"},
                                   "type": "card"},
        "receipt_email": None,
        "receipt_number": None,
        "receipt_url": None,
        "refunded": amount_refunded == row["amount"],
        "review": None,
        "shipping": None,
        "source_transfer": None,
        "statement_descriptor": None,
        "statement_descriptor_suffix": None,
        "status": "succeeded",
        "transfer_data": None,
        "transfer_group": None,
    }  # fmt: skip


def refund_object(row: sqlite3.Row) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": row["id"],
        "object": "refund",
        "amount": row["amount"],
        "balance_transaction": "txn_" + row["id"][3:],
        "charge": row["charge"],
        "created": int(row["created_at"]),
        "currency": row["currency"],
        "destination_details": {"card": {"reference_status": "pending", "type": "refund"}, "type": "card"},
        "metadata": json.loads(row["metadata"]),
        "payment_intent": row["payment_intent"],
        "reason": row["reason"],
        "receipt_number": None,
        "source_transfer_reversal": None,
        "status": row["status"],
        "transfer_reversal": None,
    }
    if row["status"] == "pending":
        fields["pending_reason"] = "processing"
    if row["status"] == "failed":
        fields["failure_reason"] = row["failure_reason"]
        fields["failure_balance_transaction"] = "txn_" + row["id"][3:][::-1]
    return fields


def list_object(url: str, things: list[dict[str, Any]], has_more: bool) -> Reply:
    return json_reply(200, {"object": "list", "url": url, "has_more": has_more, "data": things})


def error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    kind: str = "invalid_request_error",
) -> Reply:
    fields = {"type": kind, "code": code, "message": message, "param": param}
    if code is not None:
        fields["doc_url"] = "https://docs.stripe.com/error-codes#" + code.replace("_", "-")
    return json_reply(status, {"error": {name: value for name, value in fields.items() if value is not None}})


def missing(kind: str, wanted: str, param: str) -> Refused:
    status = 404 if param == "id" else 400
    return Refused(error(status, f"No such {kind}: '{wanted}'", code="resource_missing", param=param))


def no_such_url(method: str, path: str) -> Refused:
    message = f"Unrecognized request URL ({method}: {path}). Please see https://docs.stripe.com/api."
    return Refused(error(404, message))


def unauthorized(message: str, code: str | None = None) -> Refused:
    reply = error(401, message, code=code)
    return Refused(Reply(reply.status, reply.body, {"WWW-Authenticate": 'Basic realm="Stripe"'}))


def masked(key: str) -> str:
    return key[:8] + "*" * 12 + key[-4:]


def amount_text(minor: int, currency: str) -> str:
    symbol = SYMBOLS.get(currency)
    number = f"{minor // 100}.{minor % 100:02}"
    return f"{symbol}{number}" if symbol else f"{number} {currency.upper()}"


class PaymentRefusals:
    def key_too_long(self) -> Reply:
        return error(400, "Idempotency keys may be at most 255 characters long.", kind="idempotency_error")

    def key_in_use(self, key: str) -> Reply:
        message = (
            "There is currently another in-progress request using this Idempotent Key (that probably means you "
            f"submitted twice, and the other request is still going through): {key}. Please try again later."
        )
        return error(409, message, code="idempotency_key_in_use")

    def key_of_other_request(self, key: str, first: str, now: str) -> Reply:
        used = (
            "with the same parameters they were first used with"
            if first == now
            else f"for the same endpoint they were first used for ('{first.split()[1]}' vs '{now.split()[1]}')"
        )
        message = (
            f"Keys for idempotent requests can only be used {used}. Try using a key other than '{key}' if you meant to "
            "execute a different request."
        )
        return error(400, message, kind="idempotency_error")

    def rate_limited(self) -> Reply:
        reply = error(429, "Request rate limit exceeded.", code="rate_limit")
        return Reply(reply.status, reply.body, {"Retry-After": "1", "Stripe-Should-Retry": "true"})

    def rejected(self, fault: Fault) -> Reply:
        code = fault.code or "charge_disputed"
        if code in CARD_CODES:
            return error(402, f"The card issuer refused: {code}.", code=code, kind="card_error")
        status = fault.status if isinstance(fault.status, int) else 400
        return error(status, f"The request was refused: {code}.", code=code)

    def broken(self) -> Reply:
        message = "An unknown error occurred. The request may have taken effect."
        return error(500, message, kind="api_error")
