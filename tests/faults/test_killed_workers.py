"""Celery workers are killed at a dozen moments of twenty runs: others carry on, and the books show one effect each."""

import random
import time

import pytest

from approvals.models import Approval
from operations.models import Operation
from runs.models import AgentRun
from tests.faults.worker import lives
from tests.stage import LARGE, SMALL, eventually, shown, types

KILLS = 12
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


def test_a_dozen_kills_over_twenty_runs_leave_one_effect_each(stage, workers):
    chance, person = random.Random(SEED), stage.reviewer()
    orders = [stage.order(LARGE if n % 3 == 0 else SMALL) for n in range(20)]
    runs: list[AgentRun] = []

    def decide_what_waits() -> None:
        for approval in Approval.objects.filter(status="requested"):
            stage.decide(approval, person)

    for kill in range(KILLS):
        runs += [stage.ask_refund(order) for order in orders[len(runs) : (kill + 1) * 20 // KILLS + 1]]
        until = time.monotonic() + chance.uniform(0.3, 1.0)
        while time.monotonic() < until:
            decide_what_waits()
            time.sleep(0.05)
        workers.kill(chance.randrange(2))
        workers.employ()
        if (
            chance.random() < 0.5
        ):  # what the dead one had on its way is looked up now, and the living are doubted too
            stage.move_clock(12)

    def done() -> bool:
        decide_what_waits()
        time.sleep(0.5)
        stage.move_clock(1)  # not so fast that a living worker seems dead
        return left(runs) == 0

    eventually(done, "every run ends", 60)
    assert len(runs) == 20
    for order, run in zip(orders, runs, strict=True):
        (refund,) = stage.refunds(order)
        assert refund["amount"] == order["amount_minor"]
        assert AgentRun.objects.get(pk=run.pk).status == "completed", shown(run)
        assert types(run)[-1] == "run.completed"
        turns = [each for each in types(run) if each == "assistant.message"]
        assert len(turns) == 4
    assert {each.status for each in Operation.objects.all()} == {"succeeded"}
    assert len(stage.mails()) == 20
