"""What one run of the reference workload costs PostgreSQL: four turns, three tool calls, one operation that policy allows."""

from dataclasses import dataclass

import pytest
from django.db import connection
from pydantic import BaseModel

from agentops.sdk import Agent, Call, Receipt, Reply, tool
from agentops.sdk.agents import separate_registry
from tests import factories
from tests.stage import answer

MAX_COMMITS = 16


class Seen(BaseModel):
    number: int


@tool(reads=True)
def look(ctx, number: int) -> Seen:
    """Look at something."""
    return Seen(number=number)


@tool(proposes="note.add")
def write(ctx, text: str) -> Receipt:
    """Write it down."""
    return ctx.operation(
        "note.add", target=f"notes:{ctx.principal.tenant}", params={"text": text}, reference=ctx.call_id
    )


def script(conversation):
    done = sum(message.role == "tool" for message in conversation)
    match done:
        case 0 | 1:
            return Reply(f"Look {done}.", (Call("look", {"number": done}),))
        case 2:
            return Reply("Write.", (Call("write", {"text": "Seen twice."}),))
    return Reply("Done.")


@pytest.fixture
def reference():
    with separate_registry():
        Agent("reference", instructions="x", tools=[look, write], offline=script)
        yield "reference"


@dataclass
class Figures:
    """What this database's own transactions wrote into the log, whoever else uses the server."""

    commits: int
    records: int
    wal_kb: float
    transactions: int  # reads too


_COUNT = """
WITH record AS MATERIALIZED (SELECT * FROM pg_get_wal_records_info(%s::pg_lsn, pg_current_wal_insert_lsn())),
ours AS (
  SELECT DISTINCT xid FROM record, pg_database d
  WHERE d.datname = current_database() AND block_ref LIKE '%%rel %%/' || d.oid || '/%%' AND xid::text <> '0'
)
SELECT count(*) FILTER (WHERE record_type LIKE 'COMMIT%%'), count(*), sum(record_length - fpi_length) / 1024.0
FROM record JOIN ours USING (xid)
"""


def asked(statement: str, *values: object) -> tuple:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone()


def transactions() -> int:
    """Call it with no other session alive: a backend reports what it did when it ends."""
    connection.close()
    return asked("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0]


def test_a_reference_run_commits_at_most_sixteen_times(stage, reference, capsys):
    with connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    principal = factories.principal(stage.tenant)
    stage.carry_on(
        factories.run(principal, "x", name=reference)
    )  # what is done once a process is not counted
    stage.rest()
    before = transactions()
    (began,) = asked("SELECT pg_current_wal_insert_lsn()::text")
    run = stage.carry_on(factories.run(principal, "x", name=reference))
    stage.rest()
    with connection.cursor() as cursor:
        cursor.execute(
            "CHECKPOINT"
        )  # what is committed lazily is in the log's file from here on, where it is counted
    spent = Figures(*asked(_COUNT, began), transactions() - before)
    assert (run.status, answer(run), run.steps_taken) == ("completed", "Done.", 7)
    with capsys.disabled():
        print(
            f"\nreference run: {spent.commits} commits, {spent.records} records and {spent.wal_kb:.1f} kB of WAL"
            f" beside full pages, {spent.transactions} transactions with reads and polls"
        )
    assert 8 < spent.commits <= MAX_COMMITS
