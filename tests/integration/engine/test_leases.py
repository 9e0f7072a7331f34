"""Leases: one owner at a time; who lost it writes nothing more; what moved while a run parked is not slept over."""

import asyncio
import threading

import pytest
from django.db import connection

from agentops.engine import agent_loop, inbox
from agentops.engine.driver import CRASH_LIMIT
from agentops.engine.ledger import NewStep, RunLedger
from agentops.engine.live import LeaseLost
from agentops.engine.statements import pool_of
from agentops.kernel.sealed import unseal_json
from agentops.tenancy import vault
from runs.events import Event
from runs.models import AgentRun, RunEvent, Step
from runs.services import wake
from tests import factories
from tests.stage import LARGE, eventually, operation, story, types


def ledgers(work, *owners: str):
    """Run `work(ledger, …)` on a loop of its own, one ledger for each owner."""

    async def main():
        async with pool_of(4) as pool:
            return await work(*(RunLedger(pool, owner) for owner in owners))

    return asyncio.run(main())


def seen(run: AgentRun) -> tuple:
    row = AgentRun.objects.filter(pk=run.pk).values_list().get()
    return row, RunEvent.objects.filter(run_id=run.pk).count(), Step.objects.filter(run_id=run.pk).count()


@pytest.fixture
def run(stage):
    return stage.start("Where is order A-1001?")


def test_a_checkpoint_is_one_round_trip_and_one_commit(run, tmp_path):
    """Counted on the wire: the server is ready for the next command once, and has no transaction open then."""
    wire = tmp_path / "wire"

    async def work():
        async with pool_of(1) as pool:
            ledger = RunLedger(pool, "one")
            (mine,) = (await ledger.claim("default", 1)).runs
            await ledger.checkpoint(mine, [NewStep("turn-1", "model", "x", {})], [Event("tool.started", {})])
            with wire.open("w") as lines:
                async with pool.connection() as conn:
                    conn.pgconn.trace(lines.fileno())
                await ledger.checkpoint(
                    mine, [NewStep("turn-2", "model", "x", {})], [Event("tool.started", {})]
                )
                conn.pgconn.untrace()

    asyncio.run(work())
    ready = [line.split()[-1] for line in wire.read_text().splitlines() if "ReadyForQuery" in line]
    assert ready == ["I"]
    assert types(run).count("tool.started") == Step.objects.filter(run_id=run.pk).count() == 2


def test_a_claim_takes_a_run_once(run):
    async def work(first, second):
        mine = await first.claim("default", 16)
        theirs = await second.claim("default", 16)
        return [each.id for each in mine.runs], theirs.runs

    assert ledgers(work, "one", "two") == ([run.id], [])
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.status, row.lease_owner, row.lease_epoch) == ("running", "one", 1)
    assert types(run) == ["run.created", "run.started"]


def test_a_zombie_writes_nothing(stage, run):
    """Its lease ran out and another has the run: no step, no event, no park, no renewal and no hand-back of it counts."""

    async def work(first, second):
        (mine,) = (await first.claim("default", 1)).runs
        stage_time(stage)
        (theirs,) = (await second.claim("default", 1)).runs
        before = await off_loop(lambda: seen(run))
        with pytest.raises(LeaseLost):
            await first.checkpoint(mine, [NewStep("turn-1", "model", "x", {})], [Event("run.completed", {})])
        with pytest.raises(LeaseLost):
            await first.park(mine, frozenset({"approval"}), None)
        await first.renew([mine])
        await first.hand_back([mine])
        assert await off_loop(lambda: seen(run)) == before
        return mine.epoch, theirs.epoch

    assert ledgers(work, "one", "two") == (1, 2)
    assert [data.get("why") for type, data in story(run) if type == "run.resumed"] == ["lease_lost"]


def test_an_earlier_life_in_the_same_process_is_a_zombie_too(stage, run):
    async def work(ledger):
        (mine,) = (await ledger.claim("default", 1)).runs
        stage_time(stage)
        (again,) = (await ledger.claim("default", 1)).runs
        before = await off_loop(lambda: seen(run))
        with pytest.raises(LeaseLost):
            await ledger.checkpoint(mine, events=[Event("run.completed", {})])
        with pytest.raises(LeaseLost):
            await ledger.park(mine, frozenset({"operation"}), None)
        await ledger.hand_back([mine])
        assert await off_loop(lambda: seen(run)) == before
        await ledger.checkpoint(again, [NewStep("turn-1", "model", "x", {"text": "y"})])

    ledgers(work, "one")
    assert Step.objects.get(run_id=run.pk).key == "turn-1"


def stage_time(stage) -> None:
    thread = threading.Thread(target=lambda: (stage.move_clock(31), connection.close()))
    thread.start()
    thread.join()


async def off_loop(work):
    def closing():
        try:
            return work()
        finally:
            connection.close()

    return await asyncio.to_thread(closing)


def test_an_expired_lease_that_nobody_took_is_still_its_owners(stage, run):
    async def work(ledger):
        (mine,) = (await ledger.claim("default", 1)).runs
        stage_time(stage)
        await ledger.checkpoint(mine, [NewStep("turn-1", "model", "x", {"text": "y"})])

    ledgers(work, "one")
    row = AgentRun.objects.get(pk=run.pk)
    assert row.lease_expires_at > row.created_at
    with connection.cursor() as cursor:
        cursor.execute("SELECT lease_expires_at > agentops_now() FROM runs_agentrun")
        assert cursor.fetchone() == (True,)


def test_a_completed_step_keeps_its_first_result(run):
    async def work(ledger):
        (mine,) = (await ledger.claim("default", 1)).runs
        for text in ("first", "second"):
            await ledger.checkpoint(mine, [NewStep("turn-1", "model", "x", {"text": text})])

    ledgers(work, "one")
    step = Step.objects.get(run_id=run.pk)
    from agentops.engine.loading import step_place

    key = vault.opened(run.data_key_id)
    assert unseal_json(key, step_place(run.id, "turn-1"), step.sealed_result) == {"text": "first"}


def test_a_run_does_not_park_over_a_message_that_came_meanwhile(stage, run):
    async def work(ledger):
        (mine,) = (await ledger.claim("default", 1)).runs
        await off_loop(lambda: wake(run.id, "operation", {}))
        assert await ledger.park(mine, frozenset({"operation"}), None) is False
        await inbox.take(mine, ledger)
        assert await ledger.park(mine, frozenset({"operation"}), None) is True

    ledgers(work, "one")
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.inbox_seq, row.inbox_taken, row.lease_owner, row.ready_at) == (1, 1, None, None)


def test_a_decision_in_the_moment_of_parking_is_not_slept_over(stage, monkeypatch, settings):
    """The tool has seen the question open; before the run parks, a person answers it. The hold leaves time to look."""
    settings.AGENTOPS_HOLD_SECONDS = 1_000
    order, person = stage.order(LARGE), stage.reviewer()
    park, decided = RunLedger.park, []

    async def decided_meanwhile(self, run, kinds, seconds, **more):
        if "approval" in kinds and not decided:
            decided.append(await off_loop(lambda: stage.decide(asked(), person)))
        return await park(self, run, kinds, seconds, **more)

    def asked():
        from approvals.models import Approval

        return Approval.objects.get(status="requested")

    monkeypatch.setattr(RunLedger, "park", decided_meanwhile)
    run = stage.ask_refund(order)
    run = stage.carry_on(run, lambda row: row.blocked_on and row.lease_owner is None)
    assert decided
    assert (run.status, run.blocked_on) == ("running", ["operation"])
    stage.rest()
    stage.move_clock(1_001)
    stage.carry_on(run)
    assert len(stage.refunds(order)) == 1


def test_a_rejection_in_the_moment_of_parking_wakes_the_run(stage, monkeypatch):
    order, person = stage.order(LARGE), stage.reviewer()
    park, decided = RunLedger.park, []

    async def rejected_meanwhile(self, run, kinds, seconds, **more):
        if "approval" in kinds and not decided:
            from approvals.models import Approval

            decided.append(
                await off_loop(
                    lambda: stage.decide(Approval.objects.get(status="requested"), person, "reject")
                )
            )
        return await park(self, run, kinds, seconds, **more)

    monkeypatch.setattr(RunLedger, "park", rejected_meanwhile)
    run = stage.carry_on(stage.ask_refund(order))
    assert run.status == "completed"
    assert operation(run).status == "rejected"


def test_leases_that_end_without_progress_end_the_run_after_five(stage, run):
    async def work(ledger):
        for _ in range(CRASH_LIMIT):
            assert (await ledger.claim("default", 1)).runs
            stage_time(stage)

    ledgers(work, "one")
    run = stage.carry_on(run)
    assert (run.status, run.error_code) == ("failed", "worker_crash_loop")
    assert types(run)[-1] == "run.failed"


def test_a_checkpoint_forgives_earlier_crashes(stage, run):
    async def work(ledger):
        for turn in range(CRASH_LIMIT):
            (mine,) = (await ledger.claim("default", 1)).runs
            await ledger.checkpoint(mine, [NewStep(f"note-{turn}", "step", "x", {})])
            stage_time(stage)

    ledgers(work, "one")
    assert stage.carry_on(run).status == "completed"


def test_a_stopped_driver_hands_its_leases_back_and_they_count_as_no_crash(stage, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    turn = agent_loop.llm.turn

    async def slow(*args, **more):
        entered.set()
        while not leave.is_set():
            await asyncio.sleep(0.01)
        return await turn(*args, **more)

    monkeypatch.setattr(agent_loop.llm, "turn", slow)
    run = stage.start("Where is order A-1001?")
    driver = stage.driver()
    assert entered.wait(10)
    driver.stop(0)
    leave.set()
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.lease_owner, row.crash_count, row.status) == (None, 0, "running")
    stage.drivers.clear()
    assert stage.carry_on(run).status == "completed"


def test_a_turn_under_way_when_a_driver_stops_is_journaled_and_what_is_between_two_steps_goes_back_before(
    stage, test_agent, monkeypatch
):
    """The next life reads the turn and does not ask for it again. Whoever is in a tool waits for nobody's turn."""
    entered, leave, asked = threading.Event(), threading.Event(), []
    in_tool, tool_ends = threading.Event(), threading.Event()
    turn = agent_loop.llm.turn

    async def slow(*args, **more):
        if more["instructions"] != "x":
            asked.append(1)
            entered.set()
            while not leave.is_set():
                await asyncio.sleep(0.01)
        return await turn(*args, **more)

    def work(ctx):
        in_tool.set()
        tool_ends.wait(10)

    monkeypatch.setattr(agent_loop.llm, "turn", slow)
    run, other = stage.start("Where is order A-1001?"), stage.start("x", test_agent(work))
    driver = stage.driver()
    assert entered.wait(10)
    assert in_tool.wait(10)
    stopping = threading.Thread(target=lambda: driver.stop(60))
    stopping.start()
    eventually(lambda: driver.draining, "it takes nothing new")
    tool_ends.set()
    eventually(lambda: AgentRun.objects.get(pk=other.pk).lease_owner is None, "the other goes back")
    assert other.steps.filter(kind="tool", status="completed").count() == 1
    assert (stopping.is_alive(), AgentRun.objects.get(pk=run.pk).lease_owner) == (True, driver.owner)
    leave.set()
    stopping.join(20)
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.lease_owner, row.crash_count, asked) == (None, 0, [1])
    assert Step.objects.get(run_id=run.pk).key == "turn-1"
    stage.drivers.clear()
    for each in (run, other):
        assert stage.carry_on(each).status == "completed"
    assert len(asked) == types(run).count("assistant.message")


def test_the_leases_of_a_reaped_process_are_handed_back_at_once(stage, run):
    from django.core.management import call_command

    async def work(ledger):
        await ledger.claim("default", 1)

    ledgers(work, "dead")
    call_command("hand_back_leases", "dead")
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.lease_owner, row.crash_count) == (None, 1)
    assert stage.carry_on(run).status == "completed"


def test_a_tenant_never_holds_more_leases_than_it_may(stage):
    stage.tenant.concurrent_runs = 3
    stage.tenant.save()
    for _ in range(8):
        stage.start("Where is order A-1001?")

    async def work(*three):
        taken = await asyncio.gather(*(ledger.claim("default", 16) for ledger in three))
        more = await asyncio.gather(*(ledger.claim("default", 16) for ledger in three))
        return sum(len(each.runs) for each in [*taken, *more])

    assert ledgers(work, "one", "two", "three") == 3
    assert AgentRun.objects.filter(lease_owner__isnull=False).count() == 3


def test_a_suspended_tenant_starts_nothing(stage, run):
    stage.tenant.state = "suspended"
    stage.tenant.save()

    async def work(ledger):
        return (await ledger.claim("default", 16)).runs

    assert ledgers(work, "one") == []


def test_a_deadline_ends_a_run_that_waits_and_withdraws_its_question(stage):
    from agentops.engine.control import end_overdue

    order = stage.order(LARGE)
    run = stage.ask_refund(order, deadline_seconds=600)
    approval = stage.until_asked(run)
    stage.rest()
    assert end_overdue() == 0
    stage.move_clock(601)
    assert end_overdue() == 1
    row = AgentRun.objects.get(pk=run.pk)
    approval.refresh_from_db()
    assert (row.status, row.error_code, approval.status) == ("failed", "deadline", "withdrawn")
    assert types(row)[-1] == "run.failed"


def test_an_idle_driver_notices_a_run_without_a_bell(stage):
    stage.driver()
    run = factories.run(stage.tenant, "Where is order A-1001?")
    eventually(lambda: AgentRun.objects.get(pk=run.pk).is_terminal, "the run ends")


def test_a_zombie_proposes_nothing(stage, test_agent, monkeypatch):
    """Its tool still runs when another worker has the run: what it wants to propose is not recorded and not sent."""
    entered, leave, lives, raised = threading.Event(), threading.Event(), [], []

    def work(ctx):
        lives.append(1)
        if len(lives) > 1:
            return "done"
        entered.set()
        leave.wait(10)
        try:
            ctx.operation(
                "note.add", target=f"notes:{stage.tenant.slug}", params={"text": "late"}, reference="1"
            )
        except BaseException as error:
            raised.append(type(error))
            raise

    async def never(self, runs):
        """It hangs: nothing of it is renewed."""

    run = stage.start("x", test_agent(work, proposes="note.add"))
    with monkeypatch.context() as hung:
        hung.setattr(RunLedger, "renew", never)
        zombie = stage.driver()
        assert entered.wait(10)
        zombie.drain()  # it takes nothing new, so that the other one gets the run
        stage.move_clock(31)
        run = stage.carry_on(run)
    leave.set()
    assert eventually(lambda: raised, "the late tool ends") == [LeaseLost]
    assert run.status == "completed"
    assert not run.operations.exists()
