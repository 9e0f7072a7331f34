"""A run whose key does not open (it was erased, or the master key is not here) holds up nobody else's."""

from dataclasses import replace

import pytest

from agentops.audit.entries import SYSTEM
from agentops.engine import aftermath
from agentops.engine.control import cancel_run, end_overdue
from agentops.kernel.clock import Now
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey
from operations.connectors.registry import ACTIONS
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, answer, eventually


@pytest.fixture
def shut(stage):
    run = stage.start("Where is order A-1001?")
    erase(run)
    return run


def erase(run):
    DataKey.objects.filter(pk=run.data_key_id).update(wrapped=None, erased_at=Now())
    vault.forget()


def test_the_others_are_claimed_and_it_is_looked_at_again_later(stage, shut, caplog):
    assert answer(stage.carry_on(stage.start("Where is order A-1001?")))
    row = AgentRun.objects.get(pk=shut.pk)
    assert (row.status, row.lease_owner, row.crash_count) == ("queued", None, 0)
    assert row.ready_at > shut.ready_at
    said = [each.msg for each in caplog.records if isinstance(each.msg, dict)]
    assert {line["run_id"] for line in said if line["event"] == "run_unreadable"} == {shut.public_id}
    assert not [line for line in said if line["event"] == "claim_failed"]


def test_the_others_are_ended_once_their_time_is_up(stage, shut):
    late = stage.start("Where is order A-1001?")
    AgentRun.objects.filter(pk=shut.pk).update(deadline_at="2026-01-01T00:00:00Z")
    AgentRun.objects.filter(pk=late.pk).update(deadline_at="2026-01-02T00:00:00Z")
    assert end_overdue() == 1
    row = AgentRun.objects.get(pk=late.pk)
    assert (row.status, row.error_code) == ("failed", "deadline")


def test_however_many_there_are_the_others_are_ended_at_the_next_look(stage, shut):
    late = stage.start("Where is order A-1001?")
    AgentRun.objects.filter(pk=shut.pk).update(deadline_at="2026-01-01T00:00:00Z")
    AgentRun.objects.filter(pk=late.pk).update(deadline_at="2026-01-02T00:00:00Z")
    assert [end_overdue(limit=1) for _ in range(2)] == [0, 1]
    assert AgentRun.objects.get(pk=late.pk).error_code == "deadline"


def test_the_others_are_told_that_what_they_wait_for_is_of_another_version(stage, monkeypatch):
    runs = [stage.ask_refund(stage.order(LARGE)) for _ in range(2)]
    approvals = [stage.until_asked(run) for run in runs]
    stage.rest()
    for approval in approvals:
        stage.decide(approval, stage.reviewer())
    AgentRun.objects.update(
        ready_at=None, status="running", blocked_on=["operation"]
    )  # as if long in the air
    erase(runs[0])
    stage.move_clock(11)
    refund = ACTIONS["refund.create"]
    monkeypatch.setitem(ACTIONS, "refund.create", replace(refund, version=refund.version + 1))
    row = stage.carry_on(runs[1], lambda row: row.blocked_on == ["release"])
    assert row.needs == [f"action:refund.create@{refund.version}"]


def test_ends_that_cannot_be_told_hold_up_no_other(stage, monkeypatch):
    """The run that each of them should wake cannot be told so: as many as one look takes."""
    monkeypatch.setattr(aftermath, "AT_ONCE", 2)
    of = factories.principal(stage.tenant)

    def ended(conversation):
        first, following = (factories.run(of, conversation_id=conversation) for _ in range(2))
        cancel_run(stage.tenant.id, first.id, actor=SYSTEM, reason="x")
        return first, following

    untold = [ended(f"erased-{number}")[0] for number in range(2)]
    _, following = ended("other")
    for run in untold:
        erase(run)
    assert answer(stage.carry_on(following))
    stage.carry_on(following, lambda row: not row.aftermath)
    for run in untold:  # and they are told once they can be
        AgentRun.objects.filter(conversation=run.conversation).exclude(pk=run.pk).update(
            ending="failed", finished_at=Now(), status="failed", ready_at=None
        )
    eventually(lambda: not AgentRun.objects.filter(aftermath=True).exists(), "every end is told")
