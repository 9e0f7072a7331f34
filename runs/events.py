"""A run's log: numbers are taken from the run row in the transaction that writes the event."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from agentops.kernel import sealed
from agentops.kernel.sealed import Key, Place
from agentops.tenancy import vault

from . import wakeups
from .models import AgentRun, RunEvent

TYPES = frozenset(
    {
        f"run.{name}"
        for name in [
            "created",
            "started",
            "paused",
            "resumed",
            "cancel_requested",
            "completed",
            "failed",
            "cancelled",
        ]
    }
    | {"assistant.delta", "assistant.message"}
    | {f"tool.{name}" for name in ["requested", "started", "progress", "completed", "failed"]}
    | {"approval.requested", "approval.decided"}
    | {
        f"operation.{name}"
        for name in [
            "proposed",
            "approved",
            "dispatched",
            "accepted",
            "unknown",
            "escalated",
            "succeeded",
            "failed",
            "rejected",
            "cancelled",
            "expired",
            "reversed",
        ]
    }
)
LAST = frozenset({"run.completed", "run.failed", "run.cancelled"})


class Event(NamedTuple):
    """An event to be written: a type of TYPES, and its data (JSON, masked where it names people or secrets)."""

    type: str
    data: dict[str, Any]


def place(run_id: UUID) -> Place:
    return Place("runs_runevent", str(run_id), "data")


def seal(run_id: UUID, key: Key, events: Sequence[Event]) -> tuple[list[str], list[bytes]]:
    """The columns `type` and `sealed_data` of `events`."""
    for event in events:
        if event.type not in TYPES:
            raise ValueError(f"unknown event type {event.type}")
    return [event.type for event in events], [
        sealed.seal_json(key, place(run_id), event.data) for event in events
    ]


# `run` is a CTE or table that yields id, tenant_id and last_event_seq *after* counting up by the number of events.
INSERT_FROM_RUN = """
INSERT INTO runs_runevent (run_id, seq, tenant_id, type, at, sealed_data)
SELECT run.id, run.last_event_seq - cardinality(%(event_types)s::text[]) + e.ord, run.tenant_id, e.type,
       agentops_now(), e.data
FROM run, unnest(%(event_types)s::text[], %(event_data)s::bytea[]) WITH ORDINALITY AS e(type, data, ord)
"""

_APPEND = f"""
WITH run AS (
  UPDATE runs_agentrun SET last_event_seq = last_event_seq + cardinality(%(event_types)s::text[])
  WHERE id = %(run_id)s RETURNING id, tenant_id, last_event_seq
), written AS ({INSERT_FROM_RUN})
SELECT last_event_seq FROM run
"""


def append(run: AgentRun, *events: Event) -> int:
    """Write `events` of a run whose row this transaction has locked; returns the last number and tells readers."""
    if not events:
        return run.last_event_seq
    types, data = seal(run.id, vault.opened(run.data_key_id), events)
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, {"run_id": run.id, "event_types": types, "event_data": data})
        run.last_event_seq = cursor.fetchone()[0]
    wakeups.changed(run.id)
    return run.last_event_seq


def opened(event: RunEvent) -> dict[str, Any]:
    """The data of a stored event."""
    data: dict[str, Any] = vault.unseal(place(event.run_id), event.sealed_data)
    return data


_AFTER = """
SELECT event.* FROM unnest(%(run_ids)s::uuid[], %(seqs)s::int[]) AS reader(run_id, seq)
CROSS JOIN LATERAL (
  SELECT run_id, seq, tenant_id, type, at, sealed_data FROM runs_runevent e
  WHERE e.run_id = reader.run_id AND e.seq > reader.seq ORDER BY e.seq LIMIT %(limit)s
) event
ORDER BY event.run_id, event.seq
"""


def after(positions: Mapping[UUID, int], limit: int) -> list[RunEvent]:
    """Events of several runs in one query: of each run those after its position, in order, at most `limit`."""
    found = RunEvent.objects.raw(
        _AFTER, {"run_ids": list(positions), "seqs": list(positions.values()), "limit": limit}
    )
    return list(found)
