"""The sweep is an alarm: it speaks of what nobody sees to, and is silent about what somebody holds back."""

from agentops.audit.entries import Actor
from agentops.engine import tasks
from agentops.engine.control import cancel_run
from agentops.engine.pause import pause_run
from approvals.services import AUTHORITY
from operations.dispatch import depart, loaded
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE

EMIL = Actor("user:7", "admin")


def heard(caplog) -> list[tuple[str, str]]:
    """What a sweep says, and of whom."""
    caplog.clear()
    tasks.sweep()
    lines = [
        each.msg for each in caplog.records if each.name == tasks.__name__ and isinstance(each.msg, dict)
    ]
    return [(line["event"], line.get("run_id") or line["pool"]) for line in lines]


def test_a_sweep_says_what_nobody_claims_what_was_answered_and_what_a_cancel_has_not_ended(stage, caplog):
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    paused, parked = (stage.start("Where is order A-1001?") for _ in range(2))
    pause_run(stage.tenant.id, paused.id, actor=EMIL, reason="x")
    AgentRun.objects.filter(pk=parked.pk).update(
        needs=["tool:support-agent/gone"]
    )  # and a message has made it due
    suspended = factories.run(factories.tenant())
    suspended.tenant.state = "suspended"
    suspended.tenant.save()
    full = factories.run(factories.tenant())  # it waits for its tenant's turn
    full.tenant.concurrent_runs = 0
    full.tenant.save()
    stage.move_clock(61)
    assert heard(caplog) == []

    stage.decide(approval, stage.reviewer())
    depart(loaded(approval.operation_id), AUTHORITY, worker="test")  # sent, and its worker is gone
    stuck = cancel_run(stage.tenant.id, approval.operation.run_id, actor=EMIL, reason="x").run
    forgotten = stage.start("Where is order A-1001?")
    stage.move_clock(9)
    assert heard(caplog) == []
    stage.move_clock(2)
    assert heard(caplog) == [("runs_nobody_claims", "default")]
    stage.move_clock(50)
    assert heard(caplog) == [
        ("runs_nobody_claims", "default"),
        ("run_answered_and_unclaimed", forgotten.public_id),
        ("cancel_not_effective", stuck.public_id),
    ]
