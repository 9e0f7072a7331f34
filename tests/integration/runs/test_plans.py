"""What a claim, a renewal and a sweep read does not grow with the number of runs that wait."""

import asyncio
import json
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from agentops.engine import claims, tasks
from agentops.engine import ledger as ledgers
from agentops.engine.ledger import RunLedger
from agentops.engine.statements import pool_of
from runs.models import AgentRun
from tests import factories

FEW, MANY = 20, 20_000  # of each of the five kinds: at a hundred runs and at a hundred thousand
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
LATER = "agentops_now() + interval '1 hour' + n * interval '1 second'"
AGO = "agentops_now() - interval '5 minutes'"
KINDS: dict[str, dict[str, str]] = {
    "has ended, and had a deadline": {
        "status": "'completed'",
        "deadline_at": AGO,
        "finished_at": AGO,
        "ready_at": "NULL",
    },
    "asked a person, with a deadline": {
        "status": "'waiting_for_approval'",
        "ready_at": LATER,
        "deadline_at": LATER,
    },
    "asked a person, without one": {"status": "'waiting_for_approval'", "ready_at": "NULL"},
    "paused": {"paused_at": AGO, "paused_by": "'user:1'", "ready_at": AGO},
    "waits for its tenant's turn": {"ready_at": AGO},
}


def copies(of: AgentRun, number: int, changed: dict[str, str]) -> None:
    """Rows like `of`, with ids of their own; `changed` are SQL expressions over the count `n`."""
    values = {"id": "uuidv7()"} | changed
    names = [field.column for field in AgentRun._meta.concrete_fields]
    chosen = ", ".join(values.get(name, f"r.{name}") for name in names)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # copies need no proof of their keys
        cursor.execute(
            f"INSERT INTO runs_agentrun ({', '.join(names)}) SELECT {chosen}"
            f" FROM runs_agentrun r, generate_series(1, {number}) n WHERE r.id = %s",
            [of.pk],
        )


def read(plan: Any) -> int:
    (found,) = json.loads(plan) if isinstance(plan, str) else plan
    return found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]


def of_a_worker(monkeypatch, owner: str) -> dict[str, int]:
    """Buffers of each statement of one claim, one look around and one renewal, as a worker makes them."""
    figures: dict[str, int] = {}

    def explained(fetch):
        async def first(conn, statement, **arguments):
            async with conn.transaction(force_rollback=True):
                cursor = await conn.execute(EXPLAIN + statement, arguments)
                (row,) = await cursor.fetchall()
            name = " ".join(statement.split())
            figures[name] = figures.get(name, 0) + read(row["QUERY PLAN"])
            return await fetch(conn, statement, **arguments)

        return first

    async def work():
        async with pool_of(2) as pool:
            ledger = RunLedger(pool, owner)
            taken = (await ledger.claim("default", 2)).runs
            assert taken
            await ledger.waiting("default")
            await ledger.still_mine()
            await ledger.renew(taken)
            await ledger.hand_back(taken)

    with monkeypatch.context() as watched:
        for module in (claims, ledgers):
            for name in ("all_rows", "one_row"):
                watched.setattr(module, name, explained(getattr(module, name)))
        asyncio.run(work())
    return figures


@contextmanager
def explaining(figures: dict[str, int]):
    """Every statement of Django's is explained before it is made."""

    def wrapper(execute, sql, params, many, context):
        if sql.lstrip().startswith(("SELECT", "WITH", "DELETE")) and not sql.startswith(EXPLAIN):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(EXPLAIN + sql, params)
                figures[sql] = read(cursor.fetchone()[0])
                transaction.set_rollback(True)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield


def of_the_sweeper() -> dict[str, int]:
    figures: dict[str, int] = {}
    with explaining(figures):
        tasks.sweep()
    return figures


def settle() -> None:
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # of every table: earlier tests have left statistics of what is gone


def forget() -> None:
    """The planner knows no more what kinds of runs there are, so that nothing below is its luck."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_clear_attribute_stats('public', attrelid::regclass::text, attname, false) FROM pg_attribute"
            " WHERE attrelid = 'runs_agentrun'::regclass AND attnum > 0 AND NOT attisdropped"
        )


def test_neither_a_claim_nor_a_sweep_reads_more_where_many_wait(transactional_db, monkeypatch):
    busy, idle = factories.tenant(), factories.tenant()
    busy.concurrent_runs = 0
    busy.save()
    waiting = factories.run(busy)
    first = [waiting.pk, *(factories.run(idle).pk for _ in range(3))]
    seen = []
    for number in (FEW, MANY - FEW):
        for changed in KINDS.values():
            copies(waiting, number, changed)
        AgentRun.objects.filter(pk__in=first).update(priority=F("priority"))  # they lie behind all others now
        settle()
        informed, sweeping = of_a_worker(monkeypatch, f"worker-{number}"), of_the_sweeper()
        forget()
        seen.append((informed, sweeping, of_a_worker(monkeypatch, f"worker-{number}")))
        AgentRun.objects.filter(tenant=idle).update(ready_at="2026-01-01T00:00:00Z")
    assert AgentRun.objects.count() == MANY * len(KINDS) + 4
    for few, many in zip(*seen, strict=True):
        assert few.keys() == many.keys()
        for name in few:
            assert many[name] <= few[name] * 1.5 + 12, name  # each index is a level deeper
