"""A run whose key does not open (it was erased, or the master key is not here) holds up nobody else's."""

import pytest

from agentops.engine.control import end_overdue
from agentops.kernel.clock import Now
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey
from runs.models import AgentRun
from tests.stage import answer


@pytest.fixture
def shut(stage):
    run = stage.start("Where is order A-1001?")
    DataKey.objects.filter(pk=run.data_key_id).update(wrapped=None, erased_at=Now())
    vault.forget()
    return run


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
