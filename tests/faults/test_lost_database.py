"""PostgreSQL drops the workers' connections: no run is failed for it, no model is told of it, each effect happens once."""

import random
import time

import psycopg
import pytest
from django.db import OperationalError, connection

from agentops.engine import ledger as ledgers
from agentops.engine import settle
from operations import dispatch as dispatching
from runs.models import AgentRun
from tests.stage import SMALL, answer, eventually, operation, story


def drop_connections() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def once(monkeypatch, module, name, error):
    """The first call of `module.name` meets `error` instead."""
    real, met = getattr(module, name), []

    def failing(*args, **more):
        if not met:
            met.append(1)
            raise error
        return real(*args, **more)

    monkeypatch.setattr(module, name, failing)
    return met


def test_dropped_connections_end_no_run(stage):
    chance = random.Random(1)
    orders = [stage.order(SMALL) for _ in range(6)]
    stage.driver()
    runs = [stage.ask_refund(order) for order in orders]
    for _ in range(5):
        time.sleep(chance.uniform(0.05, 0.25))
        drop_connections()

    def all_ended() -> bool:
        stage.move_clock(3)
        time.sleep(0.1)
        return not AgentRun.objects.filter(finished_at=None).exists()

    eventually(all_ended, "every run ends", 40)
    for order, run in zip(orders, runs, strict=True):
        row = AgentRun.objects.get(pk=run.pk)
        assert (row.status, row.error_code, row.error_detail) == ("completed", "", "")
        assert len(stage.refunds(order)) == 1
        assert operation(run).provider_ref in answer(run)
        assert not [data for type, data in story(run) if type == "tool.failed"]


@pytest.mark.parametrize(
    ("module", "name"),
    [(settle, "of_step"), (settle, "_record"), (dispatching, "take"), (settle, "bring")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_database_that_is_away_for_a_moment_is_no_failure_of_the_tool(stage, monkeypatch, module, name):
    order = stage.order(SMALL)
    met = once(monkeypatch, module, name, OperationalError("the connection is lost"))
    run = stage.as_time_passes(stage.ask_refund(order))
    assert met
    assert (run.status, len(stage.refunds(order))) == ("completed", 1)
    assert not [data for type, data in story(run) if type == "tool.failed"]


def test_a_checkpoint_that_cannot_be_written_hands_the_run_back(stage, monkeypatch):
    met = once(monkeypatch, ledgers, "_columns", psycopg.OperationalError("the connection is lost"))
    run = stage.as_time_passes(stage.start("Where is order A-1001?"))
    assert met
    assert run.status == "completed"
    assert [data["why"] for type, data in story(run) if type == "run.resumed"] == ["hand_back"]


def test_a_database_that_refuses_a_run_again_and_again_ends_it_with_a_reason(stage, monkeypatch):
    def refuse(*args):
        raise psycopg.OperationalError("never")

    monkeypatch.setattr(ledgers, "_columns", refuse)
    run = stage.as_time_passes(stage.start("Where is order A-1001?"))
    assert (run.status, run.error_code) == ("failed", "worker_crash_loop")
