"""A write as a provider really does it: under its idempotency key, in one commit, and with the fault that is on."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Protocol

from agentops.demo.provider import books
from agentops.demo.provider.books import Books, new_id
from agentops.demo.provider.faults import Fault, Faults, Mode
from agentops.demo.provider.server import Drop, Reply

KEY_LIFETIME_SECONDS = 24 * 3600
MAX_KEY_LENGTH = 255


class Refused(Exception):
    """An answer that says no. Raised before the execution it is not stored, inside it it is."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Refusals(Protocol):
    """The words of one door for what every write can meet."""

    def key_too_long(self) -> Reply: ...
    def key_in_use(self, key: str) -> Reply: ...
    def key_of_other_request(self, key: str, first: str, now: str) -> Reply: ...
    def rate_limited(self) -> Reply: ...
    def rejected(self, fault: Fault) -> Reply: ...
    def broken(self) -> Reply: ...


@dataclass(frozen=True)
class Write[T]:
    scope: str  # whose keys these are: an account, a tenant
    key: str | None
    endpoint: str
    fingerprint: str  # equal parameters, equal fingerprint
    check: Callable[[], T]  # parameters only; what it refuses is forgotten
    execute: Callable[[Connection, T], Reply]  # in the transaction; what it refuses is remembered


class Writer:
    def __init__(self, ledger: Books, faults: Faults, refusals: Refusals) -> None:
        self._books = ledger
        self._faults = faults
        self._refusals = refusals
        self._in_flight: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def run[T](self, write: Write[T], fault: Fault) -> Reply:
        if fault.mode is Mode.RATE_LIMITED:
            raise Refused(self._refusals.rate_limited())
        if fault.mode is Mode.DROP_BEFORE_COMMIT:
            raise Drop
        if fault.mode is Mode.EMPTY_200:
            return Reply(200)
        if write.key and len(write.key) > MAX_KEY_LENGTH:
            raise Refused(self._refusals.key_too_long())
        with self._claimed(write):
            if (reply := self._stored(write)) is None:
                checked = write.check()
                if fault.mode is Mode.SLOW:
                    time.sleep(fault.seconds)
                reply = self._commit(write, checked, fault)
            if fault.mode is Mode.SLOW_AFTER:
                time.sleep(fault.seconds)
        if fault.mode is Mode.COMMIT_THEN_DROP:
            raise Drop
        return reply

    @contextmanager
    def _claimed[T](self, write: Write[T]) -> Iterator[None]:
        """In flight until the answer leaves, so that a twin is told 409 and not served twice."""
        if write.key is None or not self._faults.keys_are_honoured:
            yield
            return
        claim = (write.scope, write.key)
        with self._lock:
            if claim in self._in_flight:
                raise Refused(self._refusals.key_in_use(write.key))
            self._in_flight.add(claim)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight.discard(claim)

    def _stored[T](self, write: Write[T]) -> Reply | None:
        if write.key is None or not self._faults.keys_are_honoured:
            return None
        forgotten = self._faults.key_seconds
        lifetime = KEY_LIFETIME_SECONDS if forgotten is None else min(forgotten, KEY_LIFETIME_SECONDS)
        with self._books.reading() as db:
            row = db.execute(
                "SELECT * FROM stored_answers WHERE scope = ? AND key = ? AND created_at > ?",
                (write.scope, write.key, books.now() - lifetime),
            ).fetchone()
        if row is None:
            return None
        if row["endpoint"] != write.endpoint or row["fingerprint"] != write.fingerprint:
            raise Refused(self._refusals.key_of_other_request(write.key, row["endpoint"], write.endpoint))
        replayed = {"Idempotent-Replayed": "true", "Original-Request": row["request_id"]}
        return Reply(row["status"], row["body"], replayed)

    def _commit[T](self, write: Write[T], checked: T, fault: Fault) -> Reply:
        """Effect and stored answer share one transaction; a refusal raised by `execute` has written nothing."""
        with self._books.writing() as db:
            try:
                if fault.mode is Mode.REJECT:
                    raise Refused(self._refusals.rejected(fault))
                reply = write.execute(db, checked)
                if fault.mode is Mode.COMMIT_THEN_500:
                    reply = self._refusals.broken()
            except Refused as refusal:
                reply = refusal.reply
            request_id = new_id("req_", 14)
            if write.key is not None and self._faults.keys_are_honoured:
                db.execute(
                    "INSERT OR REPLACE INTO stored_answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (write.scope, write.key, write.endpoint, write.fingerprint,
                     reply.status, reply.body, request_id, books.now()),
                )  # fmt: skip
        return replace(reply, headers={**reply.headers, "Request-Id": request_id})


def forget_old_keys(ledger: Books) -> None:
    with ledger.writing() as db:
        db.execute("DELETE FROM stored_answers WHERE created_at <= ?", (books.now() - KEY_LIFETIME_SECONDS,))
