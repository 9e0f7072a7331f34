"""The driver in its process: its bell, its room, its end."""

import threading

from django.db import transaction

from agentops.engine import driver as engine
from agentops.engine import tasks
from agentops.kernel.broker import broker
from runs.wakeups import ring_operations
from tests.stage import LARGE, eventually, together


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


def bells() -> int:
    """Of operations, that lie at the broker: nobody takes them here."""
    return sum(b"tasks.dispatch_due" in each for each in broker().lrange("agentops", 0, -1))


def test_an_operation_that_a_person_allowed_is_sent_at_the_bell_and_a_lost_one_costs_a_look(
    stage, monkeypatch
):
    """With no look for an hour the bell alone brings it; doubled it does nothing; without it the look brings the next."""
    orders, reviewer = [stage.order(LARGE) for _ in range(3)], stage.reviewer()
    approvals = [stage.until_asked(stage.ask_refund(order)) for order in orders]
    stage.rest()
    lain = bells()
    with transaction.atomic():
        for _ in range(50):
            ring_operations()
        assert bells() == lain, "it rings after the commit"
    eventually(lambda: bells() > lain, "it rings")
    assert bells() - lain < 10, "and not for each"
    lain = bells()
    monkeypatch.setattr(engine, "HOUSE_SECONDS", 3600.0)
    driver = stage.driver()
    engine.install(driver)
    try:
        eventually(lambda: tasks.dispatch_due() == 0, "its first look is over")
        for approval in approvals[:2]:
            stage.decide(approval, reviewer)
        eventually(lambda: bells() > lain, "the bell is rung by who decides")
        begun = together(*[tasks.dispatch_due] * 3)
        assert sum(begun) in (2, 4, 6), "all three may have waited for the same look"
        for approval in approvals[:2]:
            assert stage.carry_on(approval.operation.run).status == "completed"
        assert tasks.dispatch_due() == 0
        assert [len(stage.refunds(order)) for order in orders] == [1, 1, 0]
    finally:
        engine.install(None)
    assert tasks.dispatch_due() == 0
    stage.decide(approvals[2], reviewer)  # its bell is lost: nobody takes it to a driver
    stage.rest()
    monkeypatch.setattr(engine, "HOUSE_SECONDS", 0.1)
    assert stage.carry_on(approvals[2].operation.run).status == "completed"
    assert [len(stage.refunds(order)) for order in orders] == [1, 1, 1]


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
