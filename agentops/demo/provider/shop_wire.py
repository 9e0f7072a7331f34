"""What the shop says: its orders, shipments, policy and notes, and its refusals."""

from datetime import UTC, datetime
from sqlite3 import Row
from typing import Any

from agentops.demo.provider.catalogue import DAY_SECONDS, DELIVERED, ON_ITS_WAY, PREPARING
from agentops.demo.provider.faults import Fault
from agentops.demo.provider.server import Reply, error_reply
from agentops.demo.provider.writes import MAX_KEY_LENGTH

WINDOW_DAYS = 90
TRANSIT_DAYS = 3
ACCEPTED_REASONS = ["damaged", "wrong_item", "not_as_described", "withdrawal"]


class ShopRefusals:
    def key_too_long(self) -> Reply:
        return error_reply(400, "idempotency_key_too_long", f"A key has {MAX_KEY_LENGTH} characters at most.")

    def key_in_use(self, key: str) -> Reply:
        return error_reply(
            409, "idempotency_key_in_use", f"A request with the key {key} is still in progress."
        )

    def key_of_other_request(self, key: str, first: str, now: str) -> Reply:
        return error_reply(
            400, "idempotency_mismatch", f"The key {key} was used for another request: {first}."
        )

    def rate_limited(self) -> Reply:
        reply = error_reply(429, "rate_limited", "Too many requests; nothing was done.")
        return Reply(reply.status, reply.body, {"Retry-After": "1"})

    def rejected(self, fault: Fault) -> Reply:
        code = fault.code or "order_locked"
        status = fault.status if isinstance(fault.status, int) else 422
        return error_reply(status, code, f"The shop refused: {code}.")

    def broken(self) -> Reply:
        return error_reply(500, "internal_error", "Something broke; the request may have taken effect.")


def moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shipment_status(order: Row) -> str:
    if order["shipped_at"] is None:
        return PREPARING
    return ON_ITS_WAY if order["delivered_at"] is None else DELIVERED


def order_object(order: Row, cancellation: Row | None) -> dict[str, Any]:
    return {
        "id": order["id"],
        "tenant": order["tenant"],
        "status": shipment_status(order) if cancellation is None else "cancelled",
        "customer": order["customer"],
        "charge": order["charge"],
        "amount_minor": order["amount"],
        "currency": order["currency"],
        "placed_at": moment(order["placed_at"]),
        "lines": [
            {
                "id": f"{order['id']}-1",
                "sku": order["sku"],
                "title": order["title"],
                "quantity": 1,
                "amount_minor": order["amount"],
            }
        ],
        "shipment": shipment_object(order),
    }


def shipment_object(order: Row) -> dict[str, Any]:
    shipped_at = order["shipped_at"]
    return {
        "order": order["id"],
        "status": shipment_status(order),
        "carrier": order["carrier"],
        "tracking": None if shipped_at is None else order["tracking"],
        "shipped_at": moment(shipped_at),
        "expected_at": moment((shipped_at or order["placed_at"] + DAY_SECONDS) + TRANSIT_DAYS * DAY_SECONDS),
        "delivered_at": moment(order["delivered_at"]),
    }


def policy_object(order: Row, now: float) -> dict[str, Any]:
    """The shop's own terms and what they say of this order. The window opens with the delivery."""
    delivered_at = order["delivered_at"]
    ends_at = None if delivered_at is None else delivered_at + WINDOW_DAYS * DAY_SECONDS
    is_open = ends_at is None or now <= ends_at
    return {
        "order": order["id"],
        "refundable": is_open,
        "reason": "" if is_open else f"it was delivered more than {WINDOW_DAYS} days ago",
        "window_days": WINDOW_DAYS,
        "delivered_at": moment(delivered_at),
        "window_ends_at": moment(ends_at),
        "within_window": is_open,
        "damaged_items_accepted": True,
        "accepted_reasons": ACCEPTED_REASONS,
        "return_required_for_damaged": False,
        "amount_minor": order["amount"],
        "currency": order["currency"],
        "charge": order["charge"],
    }


def cancellation_object(order: Row, cancellation: Row) -> dict[str, Any]:
    return {
        "id": cancellation["id"],
        "order": order["id"],
        "status": "cancelled",
        "goods": "stopped" if order["shipped_at"] is None else "to_be_returned",
        "reason": cancellation["reason"],
        "requested_by": cancellation["requested_by"],
        "operation_id": cancellation["operation_id"],
        "cancelled_at": moment(cancellation["created_at"]),
    }


def reopening_object(order: Row, reopening: Row) -> dict[str, Any]:
    return {
        "id": reopening["id"],
        "order": order["id"],
        "cancellation": reopening["cancellation"],
        "status": shipment_status(order),
        "requested_by": reopening["requested_by"],
        "operation_id": reopening["operation_id"],
        "reopened_at": moment(reopening["created_at"]),
    }


def note_object(note: Row) -> dict[str, Any]:
    return {
        "id": note["id"],
        "order": note["order_id"],
        "text": note["text"],
        "author": note["author"],
        "operation_id": note["operation_id"],
        "created_at": moment(note["created_at"]),
    }


def change_object(row: Row) -> dict[str, Any]:
    """A cancellation, a reopening or a note, as the list of changes names it: whose it is, on what, without its words."""
    return {
        "kind": row["kind"],
        "id": row["id"],
        "order": row["order_id"],
        "reason": row["reason"],
        "cancellation": row["cancellation"],
        "operation_id": row["operation_id"],
        "at": moment(row["created_at"]),
    }
