"""One person's answer to exactly one proposal: who may give it, what it does, what a second one is told."""

import pytest

from agentops.audit.models import AuditEntry
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.tenancy.models import Membership
from approvals import queries
from approvals.models import Decision
from operations.states import OperationStatus
from runs.models import AgentRun
from runs.states import RunStatus
from tests import factories
from tests.stage import LARGE, answer, operation


@pytest.fixture
def order(stage):
    return stage.order(LARGE)


@pytest.fixture
def asked(stage, order):
    """A refund that waits for a person, and nobody at work."""
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.rest()
    return approval


def test_a_rejection_is_given_back_to_the_customer_with_its_reason(stage, order, asked):
    run = AgentRun.objects.get(operations__approvals=asked)
    stage.decide(asked, stage.reviewer(), "reject", reason="The photo shows another lamp.")
    run = stage.carry_on(run)
    assert run.status == RunStatus.COMPLETED
    assert operation(run).status == OperationStatus.REJECTED
    assert "The photo shows another lamp" in answer(run)
    assert stage.refunds(order) == []


@pytest.mark.parametrize("nothing", ["  ", "\u202e \u200b"])
def test_a_rejection_without_a_reason_decides_nothing(stage, asked, nothing):
    with pytest.raises(Invalid) as refused:
        stage.decide(asked, stage.reviewer(), "reject", reason=nothing)
    assert refused.value.code == "reason_required"
    assert not Decision.objects.exists()


def test_nobody_approves_above_the_own_limit_and_is_told_who_can(stage, asked):
    lead = factories.person(stage.tenant, Membership.Role.LEAD, name="lena", each_minor=200_000)
    with pytest.raises(NotYours) as refused:
        stage.decide(asked, stage.reviewer(each_minor=LARGE - 1))
    assert refused.value.code == "over_limit"
    assert lead.first_name in refused.value.detail
    assert not Decision.objects.exists()
    stage.decide(asked, stage.reviewer(each_minor=LARGE))


def test_a_limit_in_another_currency_is_none(stage, asked):
    person = stage.reviewer()
    person.review_limits.update(currency="USD")
    with pytest.raises(NotYours, match="above your limit"):
        stage.decide(asked, person)


def test_who_may_not_approve_the_amount_may_still_refuse_it(stage, asked):
    stage.decide(asked, stage.reviewer(each_minor=1), "reject", reason="No.")
    asked.refresh_from_db()
    assert asked.status == "rejected"


def test_somebody_of_another_tenant_finds_nothing_and_may_nothing(stage, asked):
    globex = factories.tenant("globex")
    stranger = factories.person(globex)
    with pytest.raises(NotFound):
        queries_of(globex).decide(asked, stranger)
    with pytest.raises(NotYours) as refused:
        stage.decide(asked, stranger)
    assert refused.value.code == "no_right"
    assert not queries.visible(stranger).exists()
    entry = AuditEntry.objects.get(verb="approval.refused_reviewer")
    assert (entry.actor, entry.security) == (f"user:{stranger.pk}", True)


def queries_of(tenant):
    """The stage of another tenant, for its door only."""
    from tests.stage import Stage

    return Stage(None, tenant, None, None)


def test_an_engineer_and_somebody_who_left_may_not_decide(stage, asked):
    engineer = stage.reviewer(role=Membership.Role.ENGINEER)
    gone = stage.reviewer()
    gone.is_active = False
    gone.save()
    for person in (engineer, gone):
        with pytest.raises(NotYours) as refused:
            stage.decide(asked, person)
        assert refused.value.code == "no_right"


def test_nobody_decides_what_they_asked_for_through_a_token_of_their_own(stage, order):
    asker = stage.reviewer()
    text = factories.token(stage.tenant, person=asker)
    from agentops.tenancy.principals import authenticate

    run = factories.run(authenticate(text, "rest"), f"Refund order {order['id']}, it is damaged.")
    approval = stage.until_asked(run)
    assert f"user:{asker.pk}" in approval.requesters
    for verdict in ("approve", "reject"):
        with pytest.raises(NotYours) as refused:
            stage.decide(approval, asker, verdict)
        assert refused.value.code == "own_request"
    assert asker not in queries.who_can_approve(approval)
    stage.decide(approval, stage.reviewer())


def test_an_answer_to_another_digest_decides_nothing(stage, asked):
    with pytest.raises(Conflict) as refused:
        stage.decide(asked, stage.reviewer(), proposal_digest="c1:proposal:" + "0" * 64)
    assert refused.value.code == "digest_mismatch"
    assert refused.value.extra["proposal_digest"] == asked.proposal_digest
    assert not Decision.objects.exists()


def test_the_second_answer_is_told_who_decided_what_and_when(stage, asked):
    first, second = factories.person(stage.tenant, name="rosa"), stage.reviewer()
    stage.decide(asked, first)
    for person in (first, second):
        with pytest.raises(Conflict) as refused:
            stage.decide(asked, person, "reject")
        assert refused.value.code == "already_decided"
        assert refused.value.extra["decided_by"] == "Rosa"
        assert refused.value.extra["verdict"] == "approve"
        assert refused.value.extra["decided_at"]
    assert Decision.objects.count() == 1


def test_a_question_of_a_run_that_is_being_ended_is_not_answered_any_more(stage, asked):
    from agentops.audit.entries import SYSTEM
    from agentops.engine.control import cancel_run

    run = AgentRun.objects.get(operations__approvals=asked)
    cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="Called off.")
    with pytest.raises(Conflict) as refused:
        stage.decide(asked, stage.reviewer())
    assert refused.value.extra["approval_status"] == "withdrawn"


def test_two_people_are_needed_where_a_rule_says_so(stage, order):
    rule = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2}
    factories.policy(stage.tenant, "refund.create", [rule])
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    first, second = stage.reviewer(), stage.reviewer()
    stage.decide(approval, first)
    with pytest.raises(Conflict) as refused:
        stage.decide(approval, first)
    assert refused.value.code == "already_answered"
    assert stage.refunds(order) == []
    approval.refresh_from_db()
    assert approval.status == "requested"
    stage.decide(approval, second)
    stage.carry_on(run)
    assert len(stage.refunds(order)) == 1
