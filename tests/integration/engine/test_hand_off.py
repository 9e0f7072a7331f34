"""Ownership and hand-off: whoever recovers, rings or decides at the same moment, the work is begun once and none is forgotten."""

import asyncio
import random
import threading
import time
from datetime import timedelta
from itertools import chain

import pytest
from django.db import connection, transaction
from pydantic import BaseModel

from agentops import llm
from agentops.engine import claims, tasks
from agentops.engine import driver as engine
from agentops.engine.control import end_overdue
from agentops.engine.ledger import RunLedger
from agentops.engine.live import LeaseLost, LiveRun
from agentops.engine.statements import pool_of
from agentops.kernel.ids import uuid7
from agentops.kernel.problems import NotFound
from agentops.sdk import Agent, Call, Receipt, Reply, tool
from approvals.models import Approval
from approvals.services import decide, expire_due
from operations.models import Attempt
from runs import leases, services, wakeups
from runs.models import AgentRun, InboxMessage, RunEvent
from tests import factories
from tests.stage import LARGE, SMALL, answer, eventually, story, together, types

RACES, AT_ONCE = 2_000, 50
QUESTION = "Where is order A-1001?"


def in_thread(work) -> None:
    """What uses Django's connection, from a loop."""

    def closing():
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=closing)
    thread.start()
    thread.join()


def a_refund(order: dict, amount_minor: int) -> dict:
    line = f"{order['id']}-1"
    params = {"charge": order["charge"], "order": order["id"], "line": line, "amount_minor": amount_minor}
    params |= {"currency": "EUR", "reason": "damaged", "note": ""}
    return {"target": f"order:{order['id']}", "params": params, "reference": line}


@pytest.mark.case("G-1")
def test_three_recoverers_with_one_old_list_take_each_dead_run_once(stage, monkeypatch):
    """All three have read which tenants have dead runs before the first of them takes one."""
    of = factories.principal(stage.tenant)
    runs = [factories.run(of, QUESTION) for _ in range(50)]
    gate, listed, all_ledgers = asyncio.Barrier(3), set(), 3
    everything = leases.READY_TENANTS
    fetch = claims.all_rows

    async def slow(conn, statement, **arguments):
        rows = await fetch(conn, statement, **arguments)
        if statement == everything and id(conn) not in listed and len(listed) < all_ledgers:
            listed.add(id(conn))
            await gate.wait()
        return rows

    async def recover():
        async with pool_of(8) as pool:
            dead = RunLedger(pool, "dead")
            while (await dead.claim("default", 16)).runs:
                pass
            in_thread(lambda: stage.move_clock(31))
            monkeypatch.setattr(claims, "all_rows", slow)

            async def recoverer(name: str) -> list:
                ledger, taken = RunLedger(pool, name), []
                while True:
                    claimed = await ledger.claim("default", 16)
                    taken += [run.id for run in claimed.runs]
                    if not claimed.runs and not await ledger.waiting("default"):
                        return taken
                    await asyncio.sleep(0.002)

            return await asyncio.gather(*(recoverer(name) for name in ("one", "two", "three")))

    taken = asyncio.run(recover())
    assert sorted(chain(*taken)) == sorted(run.id for run in runs)
    assert set(AgentRun.objects.values_list("lease_epoch", "crash_count")) == {(2, 2)}
    assert RunEvent.objects.filter(type="run.resumed").count() == 50


@pytest.mark.case("G-2")
def test_a_bell_that_is_delivered_again_and_again_finds_a_living_lease(stage, test_agent, settings):
    """The broker's patience is far shorter than the step: each redelivery reaches another worker, which drops it.

    The retry that is due in five minutes is a row's `ready_at`; no message carries it.
    """
    settings.AGENTOPS_LEASE_SECONDS = 30
    llm.warm_up("offline")  # or the first turn holds the loop up for seconds, as in no worker
    order, entered, leave = stage.order(SMALL), threading.Event(), threading.Event()
    bodies = []

    def work(ctx):
        if not bodies:
            bodies.append(ctx.call_id)
            entered.set()
            assert leave.wait(30)
        ctx.sleep(300)
        return ctx.operation(
            "refund.create",
            **a_refund(order, 100),
        )

    run = stage.start(
        "x", test_agent(lambda ctx: work(ctx) and "x", proposes="refund.create", timeout_seconds=60.0)
    )
    workers = [stage.driver() for _ in range(3)]
    assert entered.wait(60)
    try:
        for _ in range(6):
            before = AgentRun.objects.get(pk=run.pk).lease_expires_at
            stage.move_clock(20)
            for worker in workers:
                engine.install(worker)
                assert tasks.advance("default") == 0
            renewed = lambda: AgentRun.objects.get(pk=run.pk).lease_expires_at > before  # noqa: E731
            eventually(renewed, "the lease is renewed")
        leave.set()
        stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
        for worker in workers:
            engine.install(worker)
            assert tasks.advance("default") == 0
    finally:
        leave.set()
        engine.install(None)
    assert AgentRun.objects.get(pk=run.pk).lease_epoch == 1
    stage.move_clock(301)
    run = stage.carry_on(run)
    assert (run.status, run.lease_epoch, len(bodies)) == ("completed", 2, 1)
    assert len(stage.refunds(order)) == Attempt.objects.count() == 1


@pytest.mark.case("G-3")
def test_a_run_begins_after_its_commit_and_without_any_broker(stage, monkeypatch, caplog):
    """A pause before each commit, a worker that looks every few milliseconds, a tenth of the starts rolled back, no broker."""
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.005)
    rung = []

    def dead(pool):
        rung.append(pool)
        raise OSError("no broker")

    monkeypatch.setattr(wakeups._celery(), "send_task", lambda *args, **more: dead("default"))
    stage.driver()
    of = factories.principal(stage.tenant)
    made, undone = [], []

    def start_some(number: int):
        for n in range(2):
            try:
                with transaction.atomic():
                    run = factories.run(of, QUESTION)
                    time.sleep(0.1)
                    if number % 10 == 0:
                        raise ZeroDivisionError
                made.append(run)
            except ZeroDivisionError:
                undone.append(run)

    together(*(lambda n=n: start_some(n) for n in range(20)))
    assert (len(made), len(undone)) == (36, 4)
    left = AgentRun.objects.filter(finished_at=None)
    eventually(lambda: not left.exists(), "every committed run ends", 30)
    assert AgentRun.objects.filter(status="completed", lease_epoch=1).count() == 36
    assert not AgentRun.objects.filter(pk__in=[run.pk for run in undone]).exists()
    assert not RunEvent.objects.filter(run_id__in=[run.pk for run in undone]).exists()
    wrong = [record.msg for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert wrong == []


@pytest.mark.case("G-5")
def test_two_thousand_answers_in_the_moment_of_parking_are_all_heard(stage):
    """The very statements of parking and waking, raced on two connections with pauses on both sides."""
    of = factories.principal(stage.tenant)
    for _ in range(AT_ONCE):
        factories.run(of, QUESTION)
    chance = random.Random(5)

    async def races():
        async with pool_of(8) as pool:
            ledger = RunLedger(pool, "one")
            mine: list[LiveRun] = []
            while len(mine) < AT_ONCE:
                mine += (await ledger.claim("default", 16)).runs

            async def park(run):
                await asyncio.sleep(chance.choice((0, 0.001, 0.002)))
                try:
                    return await ledger.park(run, frozenset({"approval"}), None)
                except LeaseLost:  # refused, and there is no letter to read: only the bell was rung here
                    return False

            async def wake(run):
                await asyncio.sleep(chance.choice((0, 0.001, 0.002)))
                async with pool.connection() as conn:
                    cursor = await conn.execute(services._WAKE, ["approval", run.id])
                    return await cursor.fetchone()

            heard = parked_first = 0
            for _ in range(RACES // AT_ONCE):
                outcomes = await asyncio.gather(*(work(run) for run in mine for work in (park, wake)))
                async with pool.connection() as conn:
                    cursor = await conn.execute(AND_BACK, [[run.id for run in mine]])
                    left = {row["id"]: row for row in await cursor.fetchall()}
                for run, parked, woken in zip(mine, outcomes[::2], outcomes[1::2], strict=True):
                    row = left[run.id]
                    run.inbox_read = row["inbox_seq"]
                    # Parked: due at once. Not parked: its owner has been refused, and looks again.
                    heard += bool(woken) and (row["due"] if parked else row["owner"] == "one")
                    parked_first += parked
            return heard, parked_first

    heard, parked_first = asyncio.run(races())
    assert heard == RACES
    assert 0 < parked_first < RACES
    with pytest.raises(NotFound):  # an answer to what was never asked
        decide(
            stage.tenant.id,
            uuid7(),
            reviewer=stage.reviewer(),
            verdict="approve",
            reason="Seen.",
            proposal_digest="c1:proposal:0",
            channel="rest",
        )


# What the race left, and the run under its lease again.
AND_BACK = """
UPDATE runs_agentrun r SET lease_owner = 'one', lease_expires_at = agentops_now(), status = 'running'
FROM runs_agentrun old WHERE old.id = r.id AND r.id = ANY(%s)
RETURNING r.id, old.ready_at <= agentops_now() AS due, old.lease_owner AS owner, r.inbox_seq
"""


class Wrote(BaseModel):
    text: str


@pytest.mark.case("A-1")
def test_messages_that_come_while_a_step_works_begin_nothing_twice(stage, test_agent):
    """A slow refund under way; meanwhile a message, and a person's yes to another proposal of the same run."""
    small, large = stage.order(SMALL), stage.order(LARGE)
    by_amount = {SMALL: small, LARGE: large}
    bodies = []

    def refund(ctx, amount: int) -> Receipt:
        """Refund."""
        bodies.append((ctx.call_id, amount))
        order = by_amount[amount]
        if amount == SMALL:  # the other one has been asked for by then
            eventually(lambda: Approval.objects.filter(status="requested").exists(), "a question")
            connection.close()
        return ctx.operation(
            "refund.create",
            **a_refund(order, amount),
        )

    made = tool(proposes="refund.create", timeout_seconds=30.0)(refund)

    def script(conversation):
        results = [message.result["status"] for message in conversation if message.role == "tool"]
        calls = (Call("refund", {"amount": LARGE}), Call("refund", {"amount": SMALL}))
        return Reply(" ".join(results)) if results else Reply("", calls)

    test_agent(lambda ctx: 1)
    Agent("two", instructions="x", tools=[made], offline=script)
    stage.provider.fault("slow", times=1, seconds=2, door="payments")
    run = stage.start("x", "two")
    stage.driver(), stage.driver()
    sending = lambda: run.operations.filter(status="executing").exists()  # noqa: E731
    eventually(sending, "the small refund is on its way")
    services.wake(run.id, "follow_up", {"text": "And thanks."})
    stage.decide(Approval.objects.get(), stage.reviewer())
    run = stage.carry_on(run)
    assert (run.status, answer(run)) == ("completed", "succeeded succeeded")
    assert len(stage.refunds(small)) == len(stage.refunds(large)) == 1
    assert Attempt.objects.filter(operation__run=run).count() == 2
    assert [amount for _, amount in bodies].count(SMALL) == 1
    numbers = list(InboxMessage.objects.filter(run_id=run.pk).order_by("n").values_list("n", flat=True))
    assert numbers == list(range(1, run.inbox_seq + 1))
    assert run.inbox_taken == run.inbox_seq


@pytest.mark.case("A-3")
def test_a_turn_with_three_writes_that_is_killed_three_times_writes_each_once(stage, test_agent, monkeypatch):
    """The worker ends each time before the turn does. Each write is its own operation, and the timeline tells three losses."""
    noted, entered, leave = [], threading.Event(), threading.Event()

    def note(ctx, text: str) -> Wrote:
        """Write it down."""
        ctx.operation("note.add", target=f"notes:{stage.tenant.slug}", params={"text": text}, reference=text)
        noted.append(text)
        if text == "three" and noted.count("three") <= 3:
            entered.set()
            leave.wait(20)
        return Wrote(text=text)

    def script(conversation):
        results = [message.result["text"] for message in conversation if message.role == "tool"]
        calls = tuple(Call("note", {"text": text}) for text in ("one", "two", "three"))
        return Reply(" ".join(results)) if results else Reply("", calls)

    test_agent(lambda ctx: 1)
    made = tool(proposes="note.add", timeout_seconds=30.0)(note)
    Agent("three", instructions="x", tools=[made], offline=script)

    async def gone(self, runs, **more):
        """A killed process hands nothing back."""

    before = len(stage.provider.books()["notes"])
    run = stage.start("x", "three")
    with monkeypatch.context() as killed:
        killed.setattr(engine.Driver, "_hand_back", gone)
        for _ in range(3):
            stage.driver()
            assert entered.wait(60)
            entered.clear()
            stage.drivers.pop().stop(0)
            stage.move_clock(31)
    run = stage.carry_on(run)
    leave.set()
    assert (run.status, answer(run)) == ("completed", "one two three")
    assert len(stage.provider.books()["notes"]) == before + 3
    assert run.operations.count() == Attempt.objects.filter(operation__run=run).count() == 3
    assert [data["why"] for type, data in story(run) if type == "run.resumed"] == ["lease_lost"] * 3
    assert types(run).count("assistant.message") == 2


@pytest.mark.case("G-8")
def test_a_day_has_twenty_four_hours_when_the_clocks_change(stage, settings):
    """The life of a question and a run's deadline across both changes, in a session of either zone; two sweepers at once.

    Schedules by the wall clock are not built yet; nothing that is stored is a wall-clock time.
    """
    settings.AGENTOPS_APPROVAL_HOURS = 24
    now = "SELECT agentops_now()"
    for zone, change in (("Europe/Berlin", "2027-03-28 01:00Z"), ("America/New_York", "2027-11-07 06:00Z")):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT extract(epoch FROM '{change}'::timestamptz - ({now}))::float8 - 43200")
            (seconds,) = cursor.fetchone()
        stage.move_clock(seconds)  # twelve hours before
        asked = stage.ask_refund(stage.order(LARGE), deadline_seconds=200_000)
        late = factories.run(stage.tenant, QUESTION, deadline_seconds=86_400)
        AgentRun.objects.filter(pk=late.pk).update(ready_at=None)
        approval = stage.until_asked(asked)
        stage.rest()
        assert abs(approval.expires_at - approval.requested_at - timedelta(hours=24)) < timedelta(seconds=5)

        def both(work, zone=zone):
            def swept():
                with connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('TimeZone', %s, false)", [zone])
                    try:
                        return work()
                    finally:  # the next one who has this connection is none of the story
                        cursor.execute("SELECT set_config('TimeZone', 'UTC', false)")

            return sum(together(swept, swept))

        stage.move_clock(86_400 - 60)
        assert (both(expire_due), both(end_overdue)) == (0, 0)
        stage.move_clock(120)
        assert (both(expire_due), both(end_overdue)) == (1, 1)
        run = stage.carry_on(asked)
        assert run.status == "completed"
        stage.rest()
