"""A worker whose PostgreSQL is gone: it goes on by itself when it is back, and leaves in time when it is told to."""

import os
import signal
import time

import psutil
import pytest
from django.db import connection

from runs.models import AgentRun
from tests.acceptance.stack import is_alive
from tests.faults.cable import Cable
from tests.faults.worker import lives
from tests.stage import LARGE, SMALL, eventually, types

OUT_SECONDS = 25.0  # fifteen on a machine that has nothing else to do


@pytest.fixture
def cable():
    there = connection.settings_dict
    made = Cable(there["HOST"], int(there["PORT"]))
    yield made
    made.cut()


def test_a_worker_without_its_database_recovers_by_itself_and_stops_in_time(stage, cable, tmp_path):
    there = connection.settings_dict
    where = f"{there['USER']}:{there['PASSWORD']}@127.0.0.1:{cable.port}/{there['NAME']}"
    about = {
        "DATABASE_URL": f"postgresql://{where}",
        "AGENTOPS_LEASE_SECONDS": "5",
        "AGENTOPS_MAIL_DIR": str(stage.mail_folder),
        "REDIS_URL": "redis://127.0.0.1:1/0",  # and no broker either
    }
    with lives(stage.provider, tmp_path / "log", **about) as workers:
        workers.employ()
        orders = [stage.order(SMALL) for _ in range(3)]
        runs = [stage.ask_refund(order) for order in orders]
        waits = stage.ask_refund(stage.order(LARGE))
        eventually(lambda: AgentRun.objects.exclude(lease_owner=None).exists(), "it is at work", 60)
        cable.cut()
        time.sleep(1)
        cable.mend()

        def all_ended() -> bool:
            stage.move_clock(1)
            time.sleep(0.1)
            return not AgentRun.objects.filter(pk__in=[run.pk for run in runs], finished_at=None).exists()

        eventually(all_ended, "every run ends", 60)
        eventually(lambda: AgentRun.objects.get(pk=waits.pk).blocked_on == ["approval"], "a question", 60)
        for order, run in zip(orders, runs, strict=True):
            assert AgentRun.objects.get(pk=run.pk).status == "completed"
            assert len(stage.refunds(order)) == 1
            assert types(run).count("assistant.message") == 4
        stage.decide(stage.until_asked(waits), stage.reviewer())
        cable.cut()
        workers.employ()  # another one, which never sees a database
        time.sleep(1)
        told = time.monotonic()
        for pid in workers.employed:
            os.kill(pid, signal.SIGTERM)
        processes = [psutil.Process(pid) for pid in workers.employed]
        eventually(lambda: not any(map(is_alive, processes)), "both are gone", OUT_SECONDS + 30)
        assert time.monotonic() - told < OUT_SECONDS
        workers.employed.clear()
