"""Load: one worker process carries two hundred runs that wait for slow models, on one loop with eight connections."""

import threading

from django.db import connection

from agentops.tenancy.models import Tenant
from runs.models import AgentRun, Step
from tests import factories
from tests.acceptance.model_server import Answer, ModelServer
from tests.stage import eventually

RUNS = 200


def connections_of_drivers() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'agentops-driver'"
        )
        return {pid for (pid,) in cursor.fetchall()}


def test_two_hundred_runs_wait_for_slow_models_in_one_process(stage, settings, monkeypatch):
    """A provider over HTTP that answers nobody before all two hundred have asked: were one run to wait for another, none would."""
    settings.AGENTOPS_MODEL = "openai-chat:slow"
    settings.AGENTOPS_DRIVER_CONNECTIONS = 8
    Tenant.objects.filter(pk=stage.tenant.pk).update(concurrent_runs=RUNS)
    of = factories.principal(stage.tenant)
    asked, all_have = [], threading.Event()

    def answer(request) -> Answer:
        asked.append(1)
        if len(asked) == RUNS:
            all_have.set()
        assert all_have.wait(120)
        return Answer(("Yes.",))

    with ModelServer(answer) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-000000000000")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/v1")
        for _ in range(RUNS):
            factories.run(of, "Are you there?")
        before, held_before = {thread.name for thread in threading.enumerate()}, connections_of_drivers()
        driver = stage.driver()
        eventually(
            lambda: len(asked) == RUNS or sum(run.in_model for run in driver.live.values()) == RUNS,
            "all have asked",
            120,
        )
        at_once = [thread.name for thread in threading.enumerate() if thread.name not in before]
        held = connections_of_drivers() - held_before
        eventually(lambda: not AgentRun.objects.exclude(status="completed").exists(), "all are answered", 120)
    assert 0 < len(held) <= 8
    assert len([name for name in at_once if name.startswith(("driver", "tool", "service"))]) <= 4, at_once
    assert Step.objects.filter(kind="model").count() == len(asked) == RUNS
    assert set(AgentRun.objects.values_list("lease_epoch", flat=True)) == {1}
