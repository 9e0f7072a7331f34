"""A pause lets the present step end; then nothing begins, nothing is proposed and nothing leaves until somebody resumes."""

import threading

import pytest

from agentops.audit.entries import Actor
from agentops.audit.models import AuditEntry
from agentops.engine.control import cancel_run
from agentops.engine.pause import pause_run, resume_run
from agentops.kernel.problems import Conflict, NotFound
from approvals.services import AUTHORITY
from operations.dispatch import depart, loaded
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, SMALL, eventually, operation, story, together, types

EMIL = Actor("user:7", "cli")


def pause(stage, run, reason="The shop is being moved."):
    return pause_run(stage.tenant.id, run.id, actor=EMIL, reason=reason)


def resume(stage, run, reason="It is moved."):
    return resume_run(stage.tenant.id, run.id, actor=EMIL, reason=reason)


def row_of(run) -> AgentRun:
    return AgentRun.objects.get(pk=run.pk)


def test_the_present_step_ends_and_the_next_begins_only_after_the_resume(stage, test_agent):
    entered, goon, calls = threading.Event(), threading.Event(), []

    def work(ctx):
        calls.append(1)
        entered.set()
        assert goon.wait(10)
        return f"call {len(calls)}"

    run = stage.start("x", test_agent(work, calls=2))
    stage.driver()
    assert entered.wait(10)
    receipt = pause(stage, run)
    assert (receipt.step_under_way, receipt.requested_by) == (True, "user:7")
    goon.set()
    eventually(lambda: row_of(run).lease_owner is None, "it is handed back")
    row = row_of(run)
    assert (row.status, row.steps.filter(kind="tool", status="completed").count()) == ("running", 1)
    assert calls == [1]
    assert not resume(stage, run).step_under_way
    row = stage.carry_on(run)
    assert (row.status, len(calls), row.crash_count, row.paused_by) == ("completed", 2, 0, "")
    whys = [(type, data.get("why")) for type, data in story(run) if type in ("run.paused", "run.resumed")]
    assert whys[:2] == [("run.paused", "person"), ("run.resumed", "pause")]
    assert [entry.actor for entry in AuditEntry.objects.filter(verb__in=["run.paused", "run.resumed"])] == [
        "user:7",
        "user:7",
    ]


def test_a_paused_run_proposes_nothing_and_makes_the_call_again_after_the_resume(stage, test_agent):
    entered, goon, lives = threading.Event(), threading.Event(), []

    def work(ctx):
        lives.append(1)
        entered.set()
        assert goon.wait(10)
        note = {"text": "moved"}
        return ctx.operation(
            "note.add", target=f"notes:{stage.tenant.slug}", params=note, reference="1"
        ).status

    run = stage.start("x", test_agent(work, proposes="note.add"))
    stage.driver()
    assert entered.wait(10)
    pause(stage, run)
    goon.set()
    eventually(lambda: row_of(run).lease_owner is None, "it is handed back")
    assert not run.operations.exists()
    resume(stage, run)
    assert stage.carry_on(run).status == "completed"
    assert (len(lives), operation(run, "note.add").status) == (2, "succeeded")


@pytest.mark.case("G-7")
def test_what_is_answered_during_a_pause_shows_as_answered_and_goes_on_by_itself_afterwards(stage):
    """Also while the only worker restarts; the broker's absence is told in tests/faults."""
    from agentops.engine.standing import standing
    from runs.queries import answered_and_unclaimed

    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    receipt = pause(stage, run)
    assert (receipt.step_under_way, receipt.held, row_of(run).status) == (False, [], "waiting_for_approval")
    stage.decide(approval, stage.reviewer())
    stage.move_clock(120)
    stage.rest()
    stage.driver()
    made = operation(run)
    assert (row_of(run).status, made.status, made.attempts) == ("running", "approved", 0)
    stale = loaded(made.id)
    stale.run.paused_at = None  # read in the moment before the pause
    assert depart(stale, AUTHORITY, worker="late") is None
    said = " ".join(standing(row_of(run)))
    assert "Paused by user:7" in said
    assert "Approved meanwhile: refund.create" in said
    eventually(lambda: row_of(run).lease_owner is None, "nobody holds it")
    assert resume(stage, run).held == [made.public_id]
    assert stage.carry_on(run).status == "completed"
    assert len(stage.refunds(order)) == 1
    parked = stage.ask_refund(stage.order(LARGE))
    waiting = stage.until_asked(parked)
    stage.rest()
    stage.decide(waiting, stage.reviewer(), "reject")
    assert [each for each in answered_and_unclaimed() if each.pk == parked.pk] == []
    stage.move_clock(61)
    assert [each.pk for each in answered_and_unclaimed()] == [parked.pk]
    pause(stage, parked)
    assert [each.paused_by for each in answered_and_unclaimed()] == ["user:7"]


def test_what_was_sent_before_the_pause_is_followed_to_its_end(stage):
    order = stage.order(SMALL)
    stage.provider.fault("commit_then_drop", times=1, door="payments")
    run = stage.carry_on(
        stage.ask_refund(order), lambda row: row.operations.filter(status="unknown").exists()
    )
    receipt = pause(stage, run)
    assert receipt.followed == [operation(run).public_id]
    stage.as_time_passes(run, lambda row: row.operations.filter(status="succeeded").exists())
    assert row_of(run).status == "running"
    resume(stage, run)
    assert stage.carry_on(run).status == "completed"
    assert len(stage.refunds(order)) == 1


def test_a_paused_run_can_be_cancelled_and_neither_paused_twice_nor_resumed_unpaused(stage):
    run = stage.start("Where is order A-1001?")
    with pytest.raises(Conflict, match="not paused"):
        resume(stage, run)
    pause(stage, run)
    with pytest.raises(Conflict, match="already: The shop is being moved"):
        pause(stage, run)
    stage.driver()
    with pytest.raises(NotFound):
        pause_run(factories.tenant().id, run.id, actor=EMIL, reason="x")
    assert cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="x").run.status == "cancelled"
    assert "run.started" not in types(run)
    for verb in (pause, resume):
        with pytest.raises(Conflict, match="cancelled already"):
            verb(stage, run)


def test_a_pause_and_a_resume_at_the_same_moment_leave_no_run_asleep(stage):
    for _ in range(4):
        run = stage.start("Where is order A-1001?")
        pause(stage, run)
        outcomes = together(lambda run=run: resume(stage, run), lambda run=run: pause(stage, run))
        assert sum(isinstance(each, Exception) for each in outcomes) <= 1
        if row_of(run).is_paused:
            resume(stage, run)
        assert stage.carry_on(run).status == "completed"
