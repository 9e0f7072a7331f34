"""A question that nobody answers ends by the database's clock, and is never told as a refusal."""

import pytest

from agentops.audit.models import AuditEntry
from agentops.kernel.problems import Conflict
from approvals.services import expire_due
from operations.states import OperationStatus
from runs.states import RunStatus
from tests.stage import LARGE, answer, operation, story

DAY_SECONDS = 24 * 3600


@pytest.fixture
def order(stage):
    return stage.order(LARGE)


def test_nobodys_silence_ends_in_its_own_words(stage, order):
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    assert expire_due() == 0
    stage.move_clock(DAY_SECONDS + 1)
    assert expire_due() == 1
    assert expire_due() == 0
    run = stage.carry_on(run)
    assert run.status == RunStatus.COMPLETED
    assert operation(run).status == OperationStatus.EXPIRED
    assert "It was not refused" in answer(run)
    assert [data["status"] for type, data in story(run) if type == "approval.decided"] == ["expired"]
    assert AuditEntry.objects.get(verb="approval.expired").actor == "system"
    approval.refresh_from_db()
    assert approval.status == "expired"
    assert stage.refunds(order) == []


def test_an_answer_after_its_time_is_too_late_even_before_anybody_swept(stage, order):
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.move_clock(DAY_SECONDS + 1)
    with pytest.raises(Conflict) as refused:
        stage.decide(approval, stage.reviewer())
    assert refused.value.code == "expired"
    assert approval.decisions.count() == 0


def test_an_expired_intent_may_be_asked_again_by_a_new_run(stage, order):
    run = stage.ask_refund(order)
    stage.until_asked(run)
    stage.move_clock(DAY_SECONDS + 1)
    expire_due()
    stage.carry_on(run)
    again = stage.ask_refund(order)
    stage.decide(stage.until_asked(again), stage.reviewer())
    stage.carry_on(again)
    second = operation(again)
    assert (second.occurrence, second.previous) == (1, operation(run))
    assert len(stage.refunds(order)) == 1
