"""Fair claims: tenants take turns, priority holds within one, a concurrency key is held by live leases and by nothing else.

Of H-7 the list of a shared reviewer team is answered by its page, which shows a lane for each tenant (order 7).
"""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest
from django.core.management import call_command
from django.db import connection

from agentops.audit.entries import SYSTEM
from agentops.engine import driver as engine
from agentops.engine import inbox
from agentops.engine.pause import pause_run
from agentops.kernel.sealed import CannotUnseal
from runs.models import AgentRun, Slot
from tests import factories
from tests.integration.engine.test_leases import ledgers, stage_time
from tests.stage import answer, eventually, story, types

QUESTION = "Where is order A-1001?"


def many(of, number: int) -> None:
    """`number` more queued runs like `of`."""
    names = [field.column for field in AgentRun._meta.concrete_fields]
    values = ", ".join("uuidv7()" if name == "id" else f"r.{name}" for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO runs_agentrun ({', '.join(names)}) SELECT {values}"
            f" FROM runs_agentrun r, generate_series(1, {number}) WHERE r.id = %s",
            [of.pk],
        )


def take_each(want: int, *owners: str) -> None:
    """Each worker makes one claim, one after the other; that the copies cannot be opened is of no matter here."""

    async def work(*ledgers):
        for ledger in ledgers:
            with suppress(CannotUnseal):
                await ledger.claim("default", want)

    ledgers(work, *owners)


def held() -> dict[int, int]:
    leases = AgentRun.objects.filter(lease_owner__isnull=False).values_list("tenant_id", flat=True)
    found = list(leases)
    return {tenant: found.count(tenant) for tenant in found}


@pytest.mark.case("H-7")
def test_the_one_run_of_a_tenant_starts_within_ten_dispatches_whatever_another_has_queued(transactional_db):
    crowd, single = factories.tenant(), factories.tenant()
    many(factories.run(crowd), 999)
    workers = [f"worker-{number}" for number in range(10)]

    take_each(1, *workers)
    assert held() == {crowd.id: 10}
    factories.run(single)
    take_each(1, *workers)
    assert held() == {crowd.id: 19, single.id: 1}  # and the crowd goes on
    factories.run(single)
    take_each(16, "worker")
    assert held() == {crowd.id: 34, single.id: 2}


def test_tenants_get_runs_by_their_weight_and_the_first_by_priority(transactional_db):
    heavy, light = factories.tenant(), factories.tenant()
    heavy.weight = 3
    heavy.save()
    for tenant in (heavy, light):
        many(factories.run(tenant), 30)
    urgent = factories.run(light, priority=-1)

    take_each(8, "one", "two")
    assert held() == {heavy.id: 12, light.id: 4}
    assert AgentRun.objects.get(pk=urgent.pk).lease_owner
    assert set(Slot.objects.values_list("deficit", flat=True)) == {0}


def test_a_key_admits_as_many_as_its_limit_counted_under_the_lock(stage):
    for _ in range(9):
        factories.run(stage.tenant, concurrency_key="order-7", concurrency_limit=2)
    other = factories.run(stage.tenant)

    async def work(*three):
        rounds = [await asyncio.gather(*(ledger.claim("default", 16) for ledger in three)) for _ in range(3)]
        return {run.id for claims in rounds for claim in claims for run in claim.runs}

    taken = ledgers(work, "one", "two", "three")
    assert len(taken) == 3
    assert other.id in taken
    aside = AgentRun.objects.filter(lease_owner=None)
    expiry = AgentRun.objects.filter(lease_owner__isnull=False).earliest("lease_expires_at").lease_expires_at
    assert {run.ready_at for run in aside} == {expiry}


def test_those_behind_a_key_hide_nobody(stage):
    many(factories.run(stage.tenant, concurrency_key="order-7"), 200)
    last = factories.run(stage.tenant, priority=1)
    assert stage.carry_on(last).status == "completed"


@pytest.mark.case("H-6")
def test_a_holder_that_stalls_between_two_steps_loses_its_key_and_the_others_go_on(stage, monkeypatch):
    """It hangs in a worker that lives: no step is under way, so its lease is not renewed, and another takes it over."""
    hung, take = [], inbox.take

    async def hanging(run, ledger):
        if not hung:
            hung.append(run.id)
            await asyncio.Event().wait()
        await take(run, ledger)

    monkeypatch.setattr(engine, "BETWEEN_SECONDS", 0.1)
    monkeypatch.setattr(inbox, "take", hanging)
    runs = [factories.run(stage.tenant, QUESTION, concurrency_key="order-7") for _ in range(3)]
    stuck = stage.driver()
    eventually(lambda: hung, "the first one is stuck")
    stuck.drain()  # it takes nothing new
    stage.driver()
    eventually(
        lambda: AgentRun.objects.filter(ready_at__isnull=False, lease_owner=None).count() == 2, "two wait"
    )
    assert AgentRun.objects.filter(started_at__isnull=False).count() == 1
    stage.move_clock(31)  # its lease, in which nothing renews it
    ended = [stage.carry_on(run) for run in runs]
    assert {run.status for run in ended} == {"completed"}
    (holder,) = [run for run in ended if run.id == hung[0]]
    (why,) = [data["why"] for type, data in story(holder) if type == "run.resumed"]
    assert why in ("lease_lost", "hand_back")  # on a crowded machine the drained worker gives it up first
    spans = sorted((run.started_at, run.finished_at) for run in ended if run.id != holder.id)
    assert spans[0][1] <= spans[1][0]


def test_who_leaves_a_key_lets_the_next_one_come_at_once(stage):
    runs = [factories.run(stage.tenant, QUESTION, concurrency_key="order-7") for _ in range(4)]
    ended = [
        stage.carry_on(run) for run in runs
    ]  # without the clock, which alone would take a lease's time each
    spans = sorted((run.started_at, run.finished_at) for run in ended)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_who_leaves_a_key_wakes_nobody_that_is_parked_under_it(stage, test_agent):
    """Each of them would leave it again, and wake the next one, or itself."""
    name = test_agent(lambda ctx: ctx.sleep(3600), repeatable=True)
    parked = [stage.start("x", name, concurrency_key="order-7") for _ in range(2)]
    for run in parked:
        stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    assert answer(stage.carry_on(stage.start(QUESTION, concurrency_key="order-7")))
    assert [types(run).count("run.resumed") for run in parked] == [0, 0]


def test_a_dead_holder_blocks_nobody_for_longer_than_its_lease(stage):
    first = factories.run(stage.tenant, QUESTION, concurrency_key="order-7")
    second = factories.run(stage.tenant, QUESTION, concurrency_key="order-7")

    async def dies(ledger):
        assert len((await ledger.claim("default", 16)).runs) == 1
        stage_time(stage)

    ledgers(dies, "dead")
    for run in (first, second):
        assert answer(stage.carry_on(run))


def test_a_reaped_holder_that_is_paused_lets_the_next_one_come_at_once(stage):
    first, second = (factories.run(stage.tenant, QUESTION, concurrency_key="order-7") for _ in range(2))

    async def dies(ledger):
        assert [run.id for run in (await ledger.claim("default", 16)).runs] == [first.id]

    ledgers(dies, "dead")
    assert AgentRun.objects.get(pk=second.pk).stepped_aside
    pause_run(stage.tenant.id, first.id, actor=SYSTEM, reason="x")
    call_command("hand_back_leases", "dead")
    assert answer(stage.carry_on(second))


def test_an_author_bounds_how_many_runs_of_an_agent_work_at_once(stage, test_agent):
    from agentops.sdk import Limits

    name = test_agent(lambda ctx: 1, limits=Limits(at_once=1))
    made = [stage.start("x", name) for _ in range(2)]
    assert {(run.concurrency_key, run.concurrency_limit) for run in made} == {("agent:tester", 1)}
