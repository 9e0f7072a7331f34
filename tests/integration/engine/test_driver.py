"""The driver in its process: its bell, its room, its end."""

import threading

from agentops.engine import driver as engine
from agentops.engine import tasks
from tests.stage import eventually


def test_a_bell_waits_for_the_claim_it_causes_and_tells_its_size(stage, monkeypatch):
    monkeypatch.setattr(engine, "POLL_SECONDS", 60.0)
    driver = stage.driver()
    engine.install(driver)
    try:
        eventually(lambda: not driver._wake.is_set(), "the driver is idle")
        runs = [stage.start("Where is order A-1001?") for _ in range(3)]
        assert tasks.advance("default") == 3
        assert tasks.advance("elsewhere") == 0
        for run in runs:
            assert stage.carry_on(run).status == "completed"
    finally:
        engine.install(None)
    assert tasks.advance("default") == 0


def test_a_process_with_too_many_abandoned_threads_ends_in_order(stage, test_agent, monkeypatch):
    monkeypatch.setattr(engine, "ABANDONED_LIMIT", 1)
    leave, ended = threading.Event(), threading.Event()
    name = test_agent(lambda ctx: leave.wait(20), calls=2, reads=True, timeout_seconds=0.1)
    worn = stage.driver(worn_out=ended.set)
    run = stage.carry_on(stage.start("x", name), lambda row: ended.is_set())
    assert worn.draining
    worn.stop(2)
    leave.set()
    assert stage.carry_on(run).status == "completed"
