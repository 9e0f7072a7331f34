"""The run's log: numbers without gap or repeat, written before anybody sees them, each with its audit entry."""

import asyncio

import pytest
from django.db import connection, transaction

from agentops.audit.models import AuditEntry
from agentops.engine.ledger import RunLedger
from agentops.engine.statements import pool_of
from approvals.models import Decision
from operations.models import Operation
from runs import events, services
from runs.events import Event
from runs.models import AgentRun, RunEvent
from tests.stage import LARGE, operation, story, together, types


def test_eight_writers_leave_no_gap_and_no_repeat(stage):
    """Four in transactions of Django's, four checkpoints of the leased run, each twenty times."""
    run = stage.start("Where is order A-1001?")

    def services_write():
        for _ in range(20):
            with transaction.atomic():
                events.append(
                    services.lock(stage.tenant.id, run.id), Event("tool.progress", {"by": "a service"})
                )

    def driver_writes():
        async def main():
            async with pool_of(4) as pool:
                ledger = RunLedger(pool, "one")
                while not (taken := (await ledger.claim("default", 1)).runs):
                    await asyncio.sleep(0.001)  # the row is locked by a writer at the moment
                (mine,) = taken
                writes = [ledger.checkpoint(mine, events=[Event("tool.progress", {})] * 2) for _ in range(80)]
                await asyncio.gather(*writes)

        asyncio.run(main())

    outcomes = together(services_write, services_write, services_write, services_write, driver_writes)
    assert outcomes == [None] * 5
    numbers = list(RunEvent.objects.filter(run_id=run.pk).order_by("seq").values_list("seq", flat=True))
    assert numbers == list(range(1, 2 + 80 + 160 + 1))
    assert AgentRun.objects.get(pk=run.pk).last_event_seq == numbers[-1]


def test_the_order_of_numbers_is_the_order_of_commits(stage):
    """While one writer has a number and has not committed, nobody gets the next one."""
    run = stage.start("Where is order A-1001?")
    with transaction.atomic():
        services.lock(stage.tenant.id, run.id)
        (outcome,) = together(lambda: append_with_timeout(stage, run))
        assert "lock" in str(outcome)


def append_with_timeout(stage, run):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '200ms'")
        events.append(AgentRun.objects.get(pk=run.pk), Event("tool.progress", {}))


def test_what_is_rolled_back_was_never_told(stage):
    run = stage.start("Where is order A-1001?")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        events.append(services.lock(stage.tenant.id, run.id), Event("tool.progress", {}))
        raise ZeroDivisionError
    assert types(run) == ["run.created"]
    assert AgentRun.objects.get(pk=run.pk).last_event_seq == 1


def test_an_unknown_type_is_refused(stage):
    run = stage.start("Where is order A-1001?")
    with pytest.raises(ValueError, match="unknown event type"):
        events.append(run, Event("run.exploded", {}))


def test_every_decision_and_every_move_has_its_audit_entry_in_the_same_transaction(stage):
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    stage.decide(stage.until_asked(run), stage.reviewer())
    run = stage.carry_on(run)
    made = operation(run)
    entries = AuditEntry.objects.filter(object_id=made.public_id).order_by("id")
    assert [entry.verb for entry in entries] == [
        f"operation.{name}" for name in ("proposed", "approved", "executing", "succeeded")
    ]
    of_approval = AuditEntry.objects.filter(object_type="approval").order_by("id")
    assert [entry.verb for entry in of_approval] == [
        "approval.requested",
        "approval.approve",
    ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text FROM approvals_decision")
        (decided,) = cursor.fetchone()
    approve, approved = AuditEntry.objects.get(verb="approval.approve"), entries[1]
    assert approve.transaction_id == approved.transaction_id
    assert int(approve.transaction_id) % 2**32 == int(decided)
    proposed = RunEvent.objects.get(run_id=run.pk, type="operation.proposed", seq=number_of(run, made))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT xmin::text FROM runs_runevent WHERE run_id = %s AND seq = %s", [run.pk, proposed.seq]
        )
        assert int(entries[0].transaction_id) % 2**32 == int(cursor.fetchone()[0])


def number_of(run, made: Operation) -> int:
    return next(
        place
        for place, (type, data) in enumerate(story(run), 1)
        if type == "operation.proposed" and data["operation_id"] == made.public_id
    )


def test_a_decision_that_cannot_be_written_in_the_audit_log_is_not_made(stage, monkeypatch):
    from approvals import deciding

    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()

    def refuse(*args, **more):
        raise RuntimeError("the audit log is away")

    monkeypatch.setattr(deciding, "record", refuse)
    with pytest.raises(RuntimeError):
        stage.decide(approval, stage.reviewer())
    approval.refresh_from_db()
    assert approval.status == "requested"
    assert not Decision.objects.exists()


def test_no_word_of_the_customer_and_no_secret_rests_in_a_clear_column(stage):
    order = stage.order(LARGE)
    words = "kittens-and-umbrellas"
    run = stage.start(f"Refund order {order['id']}, it is damaged. {words} 4242424242424242")
    stage.decide(stage.until_asked(run), stage.reviewer(), reason=words)
    stage.carry_on(run)
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names(cursor):
            cursor.execute(
                f"SELECT count(*) FROM {name} t WHERE t::text ILIKE ANY(%s)", [[f"%{words}%", "%sk_test%"]]
            )
            assert cursor.fetchone() == (0,), name
