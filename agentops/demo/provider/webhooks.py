"""Events as the payments API announces them: kept in the books, signed, tried a few times from a thread of its own."""

import hashlib
import hmac
import json
import sqlite3
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from agentops.demo.provider import books
from agentops.demo.provider.books import Books, insert, new_id
from agentops.demo.provider.server import direct

API_VERSION = "2026-10-28.endive"
PAUSES_SECONDS = (0.2, 1.0, 5.0, 15.0)  # between the tries; after the last one the event is given up
TIMEOUT_SECONDS = 5.0
NEXT = "SELECT * FROM events WHERE due_at IS NOT NULL ORDER BY due_at, seq LIMIT 1"


@dataclass(frozen=True)
class Endpoint:
    url: str
    secret: str


def announce(
    db: sqlite3.Connection, kind: str, thing: dict[str, Any], idempotency_key: str | None = None
) -> None:
    """In the transaction that made it true."""
    event_id = new_id("evt_")
    event = {
        "id": event_id,
        "object": "event",
        "api_version": API_VERSION,
        "created": int(books.now()),
        "data": {"object": thing},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": idempotency_key},
        "type": kind,
    }
    insert(db, "events", id=event_id, payload=json.dumps(event), due_at=books.now())


def signature(payload: bytes, secret: str, timestamp: int) -> str:
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + payload, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


def deliver_due(ledger: Books, endpoint: Endpoint | None) -> float | None:
    """`endpoint` takes everything; without one each tenant is told of its own, where it has said where.

    Returns the seconds until the next try, None when everything is delivered or given up."""
    while True:
        with ledger.reading() as db:
            row = db.execute(NEXT).fetchone()
        if row is None:
            return None
        if (early := row["due_at"] - books.now()) > 0:
            return float(early)
        where = endpoint or _endpoint_of(ledger, row["payload"])
        is_done = (
            where is None  # nobody listens, and nobody will be told of it later
            or _accepted(row["payload"].encode(), where)
            or row["tries"] >= len(PAUSES_SECONDS)
        )
        due_at = None if is_done else books.now() + PAUSES_SECONDS[row["tries"]]
        with ledger.writing() as db:
            db.execute("UPDATE events SET due_at = ?, tries = tries + 1 WHERE seq = ?", (due_at, row["seq"]))


def _endpoint_of(ledger: Books, payload: str) -> Endpoint | None:
    """Where the tenant wants to be told whose order the event's charge paid for."""
    thing = json.loads(payload)["data"]["object"]
    with ledger.reading() as db:
        row = db.execute(
            "SELECT e.url, e.secret FROM charges c JOIN orders o ON o.id = c.order_id"
            " JOIN endpoints e ON e.tenant = o.tenant WHERE c.id = ?",
            (thing.get("charge", thing["id"]),),
        ).fetchone()
    return Endpoint(row["url"], row["secret"]) if row else None


def _accepted(payload: bytes, endpoint: Endpoint) -> bool:
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "AgentOps-Demo-Provider/1.0",
        "Stripe-Signature": signature(payload, endpoint.secret, int(books.now())),
    }
    request = urllib.request.Request(endpoint.url, payload, headers, method="POST")
    try:
        with direct.open(request, timeout=TIMEOUT_SECONDS):
            return True
    except (OSError, HTTPException):  # refused, timed out, cut, or any status but 2xx
        return False
