"""What a claim, a renewal and a sweep read does not grow with the number of runs that wait."""

import asyncio
import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Model

from agentops.audit.entries import SYSTEM
from agentops.engine import claims, tasks
from agentops.engine import ledger as ledgers
from agentops.engine.control import cancel_run
from agentops.engine.ledger import RunLedger
from agentops.engine.statements import pool_of
from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import seal_json
from agentops.tenancy import vault
from agentops.tenancy.principals import Principal
from approvals.models import Approval
from approvals.queries import waiting_long
from operations.connectors.base import Told
from operations.hooks import body_place, take_left
from operations.models import Hook
from runs.limits import leave_room
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, operation

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


def copies(of: Model, number: int, changed: dict[str, str]) -> None:
    """Rows like `of`, with ids of their own; `changed` are SQL expressions over the count `n`."""
    values = {"id": "uuidv7()"} | changed
    table, names = of._meta.db_table, [field.column for field in of._meta.concrete_fields]
    chosen = ", ".join(values.get(name, f'r."{name}"') for name in names)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # copies need no proof of their keys
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(f'"{name}"' for name in names)}) SELECT {chosen}"
            f" FROM {table} r, generate_series(1, {number}) n WHERE r.id = %s",
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


def forget(*tables: str) -> None:
    """The planner knows no more what kinds of rows there are, so that nothing below is its luck."""
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                "SELECT pg_clear_attribute_stats('public', attrelid::regclass::text, attname, false)"
                " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [table],
            )


def require_alike(few: dict[str, int], many: dict[str, int]) -> None:
    assert few.keys() == many.keys()
    for name in few:
        assert many[name] <= few[name] * 1.5 + 12, name  # each index is a level deeper


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
        forget("runs_agentrun")
        seen.append((informed, sweeping, of_a_worker(monkeypatch, f"worker-{number}")))
        AgentRun.objects.filter(tenant=idle).update(ready_at="2026-01-01T00:00:00Z")
    assert AgentRun.objects.count() == MANY * len(KINDS) + 4
    for few, many in zip(*seen, strict=True):
        require_alike(few, many)


def test_neither_a_start_nor_an_end_nor_a_message_reads_more_where_many_have_ended(stage):
    """The conversation is an old and long one; the provider tells of something that names no operation of ours."""
    run = stage.ask_refund(stage.order(LARGE), conversation_id="long")
    approval = stage.until_asked(run)
    stage.decide(approval, stage.reviewer())
    run, caller = stage.carry_on(run), Principal(stage.tenant, run.principal, "rest", frozenset())
    stage.rest()
    of, approval = operation(run), Approval.objects.get(pk=approval.pk)

    def doors() -> None:
        started = factories.run(caller, conversation_id="long")
        leave_room(stage.tenant)
        cancel_run(stage.tenant.id, started.id, actor=SYSTEM, reason="x")
        unheard_of(of.connection)
        assert take_left() == 1
        waiting_long(24)
        assert of.approvals.order_by("-id").first() == approval

    def read_at_the_doors() -> dict[str, int]:
        figures: dict[str, int] = {}
        with explaining(figures):
            doors()
        # What is written touches each index, or none, as there is room on the row's page or not.
        return {sql: buffers for sql, buffers in figures.items() if sql.startswith("SELECT")}

    informed, unknown = [], []
    doors()  # the first time it looks for more
    for number in (FEW, MANY - FEW):
        copies(run, number, {})
        copies(of, number, {"operation_key": "uuidv7()::text", "run_id": "uuidv7()"})
        copies(approval, number, {"operation_id": "uuidv7()", "consumed_by": "NULL", "consumed_at": "NULL"})
        settle()
        informed.append(read_at_the_doors())
        copies(run, number, {"conversation_id": "NULL"})
        settle()
        forget("runs_agentrun", "operations_operation", "approvals_approval")
        unknown.append(read_at_the_doors())
    require_alike(*informed)
    require_alike(*unknown)


def unheard_of(connection) -> None:
    """A message is left of a refund that we have not made."""
    told = Told(operation_id="", provider_ref="re_foreign", effect={}, thing="ch_foreign")
    hook_id = uuid7()
    Hook.objects.create(
        id=hook_id,
        tenant_id=connection.tenant_id,
        connection=connection,
        event_id=str(hook_id),
        type="refund.updated",
        told_at=Now(),
        received_at="2026-01-01T00:00:00Z",
        sealed_body=seal_json(vault.for_tenant(connection.tenant_id), body_place(hook_id), asdict(told)),
    )
