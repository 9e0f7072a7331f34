"""The books: one SQLite file that survives restarts, and one lock through which everything goes."""

import json
import secrets
import sqlite3
import string
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, payment_intent TEXT UNIQUE NOT NULL, order_id TEXT,
    amount INTEGER NOT NULL CHECK (amount > 0), currency TEXT NOT NULL, customer TEXT, description TEXT,
    metadata TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS refunds (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, charge TEXT NOT NULL REFERENCES charges (id),
    payment_intent TEXT NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0), currency TEXT NOT NULL, status TEXT NOT NULL, reason TEXT,
    failure_reason TEXT, metadata TEXT NOT NULL, idempotency_key TEXT, created_at REAL NOT NULL,
    settles_at REAL, settles_to TEXT
);
CREATE INDEX IF NOT EXISTS charges_of_order ON charges (order_id);
CREATE INDEX IF NOT EXISTS refunds_of_charge ON refunds (charge);
CREATE INDEX IF NOT EXISTS refunds_to_settle ON refunds (settles_at) WHERE settles_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS stored_answers (
    scope TEXT NOT NULL, key TEXT NOT NULL, endpoint TEXT NOT NULL, fingerprint TEXT NOT NULL,
    status INTEGER NOT NULL, body BLOB NOT NULL, request_id TEXT NOT NULL, created_at REAL NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, payload TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, due_at REAL
);
CREATE INDEX IF NOT EXISTS events_due ON events (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS endpoints (tenant TEXT PRIMARY KEY, url TEXT NOT NULL, secret TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS customers (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, email TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, number INTEGER NOT NULL, customer TEXT NOT NULL, charge TEXT NOT NULL,
    amount INTEGER NOT NULL, currency TEXT NOT NULL, sku TEXT NOT NULL, title TEXT NOT NULL,
    placed_at REAL NOT NULL, carrier TEXT NOT NULL, tracking TEXT NOT NULL, shipped_at REAL, delivered_at REAL,
    UNIQUE (tenant, number)
);
CREATE TABLE IF NOT EXISTS cancellations (
    id TEXT PRIMARY KEY, order_id TEXT NOT NULL REFERENCES orders (id), reason TEXT, requested_by TEXT NOT NULL,
    idempotency_key TEXT, operation_id TEXT, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS cancellations_of_order ON cancellations (order_id);
CREATE TABLE IF NOT EXISTS reopenings (
    id TEXT PRIMARY KEY, order_id TEXT NOT NULL REFERENCES orders (id),
    cancellation TEXT UNIQUE NOT NULL REFERENCES cancellations (id), requested_by TEXT NOT NULL,
    idempotency_key TEXT, operation_id TEXT, created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS notes (
    seq INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, tenant TEXT NOT NULL, order_id TEXT, text TEXT NOT NULL,
    author TEXT NOT NULL, idempotency_key TEXT, operation_id TEXT, created_at REAL NOT NULL
);
"""
ALPHABET = string.ascii_letters + string.digits


def new_id(prefix: str, length: int = 24) -> str:
    return prefix + "".join(secrets.choice(ALPHABET) for _ in range(length))


def insert(db: sqlite3.Connection, table: str, **values: Any) -> None:
    columns = ", ".join(values)
    marks = ", ".join("?" for _ in values)
    db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(values.values()))


class Books:
    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(
            "PRAGMA synchronous = NORMAL"
        )  # a killed process loses nothing; only a lost machine could
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA busy_timeout = 5000")
        self._db.executescript(SCHEMA)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, alone; nothing may wait or speak to the network inside."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def count(self, name: str) -> None:
        with self.writing() as db:
            db.execute(
                "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1",
                (name,),
            )

    def close(self) -> None:
        """Keep the lock for good: no thread starts another transaction on its way out."""
        self._lock.acquire()
        self._db.close()


def shown(db: sqlite3.Connection, order: str | None) -> dict[str, Any]:
    """Everything that took effect, oldest first; `order` narrows it to one."""
    refunds = db.execute(
        "SELECT r.*, c.order_id FROM refunds r JOIN charges c ON c.id = r.charge"
        " WHERE ?1 IS NULL OR c.order_id = ?1 ORDER BY r.seq",
        (order,),
    )
    effects = "WHERE ?1 IS NULL OR order_id = ?1 ORDER BY created_at"
    cancellations = db.execute(f"SELECT * FROM cancellations {effects}", (order,))
    reopenings = db.execute(f"SELECT * FROM reopenings {effects}", (order,))
    notes = db.execute(f"SELECT * FROM notes {effects}", (order,))
    counters = dict(db.execute("SELECT name, value FROM counters").fetchall())
    return {
        "refunds": [_refund(row) for row in refunds],
        "calls": counters.get("payments", 0),
        "cancellations": [
            {"id": row["id"], "order": row["order_id"], "idempotency_key": row["idempotency_key"],
             "operation_id": row["operation_id"]}
            for row in cancellations
        ],
        "reopenings": [
            {"id": row["id"], "order": row["order_id"], "cancellation": row["cancellation"],
             "idempotency_key": row["idempotency_key"], "operation_id": row["operation_id"]}
            for row in reopenings
        ],
        "notes": [
            {"id": row["id"], "tenant": row["tenant"], "order": row["order_id"], "text": row["text"],
             "idempotency_key": row["idempotency_key"], "operation_id": row["operation_id"]}
            for row in notes
        ],
        "shop_calls": counters.get("shop", 0),
    }  # fmt: skip


def _refund(row: sqlite3.Row) -> dict[str, Any]:
    metadata = json.loads(row["metadata"])
    return {
        "id": row["id"],
        "charge": row["charge"],
        "order": row["order_id"],
        "amount": row["amount"],
        "currency": row["currency"],
        "status": row["status"],
        "idempotency_key": row["idempotency_key"],
        "operation_id": metadata.get("operation_id"),
        "key_digest": metadata.get("key_digest"),
    }


def now() -> float:
    return time.time()
