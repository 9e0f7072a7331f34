"""A caller's key names one request, and that request gets one answer: the rule that every door shares.

The answer is stored in the transaction of what it tells of. While that transaction is open, two advisory try-locks
stand for it, so nobody ever waits: one on key and fingerprint, taken first, and one on the key alone.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from agentops.kernel import sealed
from agentops.kernel.canonical import NotCanonical, digest
from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.kernel.problems import Conflict, Invalid, Unavailable
from agentops.kernel.sealed import Place
from agentops.telemetry.logs import logger
from agentops.tenancy import vault
from agentops.tenancy.principals import Principal

from .models import AgentRun, IdempotencyKey

log = logger(__name__)

KEPT = timedelta(days=7)
# CASE stops at its first true arm: the second lock is only tried by the holder of the first.
_TRY_LOCK = """
SELECT CASE WHEN NOT pg_try_advisory_xact_lock(%s) THEN 'in_flight'
            WHEN NOT pg_try_advisory_xact_lock(%s) THEN 'other_request'
            ELSE 'ours' END
"""


@dataclass(frozen=True)
class Answer:
    """What a door sends: `run` is the run it tells of, in its present state; `replayed` where it was stored before."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    run: AgentRun | None = None
    replayed: bool = False


@dataclass(frozen=True)
class Name:
    """Whose request, by which route, under which key, and the fingerprint of what it asks for."""

    caller: Principal
    route: str
    key: str
    fingerprint: str

    def lock(self, *more: str) -> int:
        parts = ("idempotency", str(self.caller.tenant.id), self.caller.name, self.route, self.key, *more)
        hashed = hashlib.sha256("\x00".join(parts).encode()).digest()
        return int.from_bytes(hashed[:8], signed=True)


def once(caller: Principal, route: str, key: str, asked: Any, begin: Callable[[], Answer]) -> Answer:
    """The answer to `asked` (the validated request, as JSON values) under `key`: the stored one, or that of `begin`.

    `begin` runs in the transaction that stores its answer; if it raises, the key stays free. Raises Invalid where the
    key belongs to another request, Conflict while the same one is in flight, Unavailable where nothing can be stored.
    """
    try:
        name = Name(caller, route, key, digest("request", asked))
    except NotCanonical as fault:
        raise Invalid(f"The request has no canonical form ({fault}). Correct it and send it again.") from None
    with transaction.atomic():
        stored = _stored(name)
        if stored is None:
            lock = _try_lock(name)
            if lock == "in_flight":
                raise Conflict(
                    "The first request with this Idempotency-Key is still in flight. Repeat this one in a second.",
                    code="idempotency_in_flight",
                    headers={"Retry-After": "1"},
                )
            # The request that was in flight may have ended between the look above and the lock.
            stored = _stored(name)
            if stored is None and lock == "other_request":
                raise _reused()
        if stored is not None:
            return _replay(name, stored)
        answer = begin()
        _store(name, answer)
        return answer


@contextmanager
def _storing() -> Iterator[None]:
    """Whatever the store answers but success: nothing is started that could not be answered twice."""
    try:
        yield
    except DatabaseError as error:
        log.error("idempotency_store_failed", error=type(error).__name__)
        raise Unavailable(
            "Idempotency keys cannot be stored now, so nothing was started. Repeat the request with the same key.",
            code="idempotency_unavailable",
            headers={"Retry-After": "5"},
        ) from error


def _rows(name: Name) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(
        tenant=name.caller.tenant, caller=name.caller.name, route=name.route, key=name.key
    )


def _stored(name: Name) -> IdempotencyKey | None:
    with _storing():
        return _rows(name).filter(expires_at__gt=Now()).select_related("run").first()


def _try_lock(name: Name) -> str:
    with _storing(), connection.cursor() as cursor:
        cursor.execute(_TRY_LOCK, [name.lock(name.fingerprint), name.lock()])
        return str(cursor.fetchone()[0])


def _store(name: Name, answer: Answer) -> None:
    row_id = uuid7()
    key = vault.for_tenant(name.caller.tenant.id)
    with _storing():
        _rows(name).delete()  # an expired one
        IdempotencyKey.objects.create(
            id=row_id,
            tenant=name.caller.tenant,
            caller=name.caller.name,
            route=name.route,
            key=name.key,
            fingerprint=name.fingerprint,
            run=answer.run,
            response_status=answer.status,
            response_headers=answer.headers,
            sealed_body=sealed.seal_bytes(key, _place(row_id), answer.body),
            expires_at=Now() + KEPT,
        )


def _replay(name: Name, stored: IdempotencyKey) -> Answer:
    if stored.fingerprint != name.fingerprint:
        raise _reused()
    key = vault.opened(sealed.key_id(stored.sealed_body))
    body = sealed.unseal_bytes(key, _place(stored.id), stored.sealed_body)
    return Answer(stored.response_status, body, stored.response_headers, stored.run, replayed=True)


def _place(row_id: UUID) -> Place:
    return Place("runs_idempotencykey", str(row_id), "body")


def _reused() -> Invalid:
    return Invalid(
        "This Idempotency-Key belongs to another request: it came with another body before. "
        "Repeat that body, or take a new key for a new request.",
        code="idempotency_key_reused",
    )
