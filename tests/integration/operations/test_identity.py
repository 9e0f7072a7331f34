"""One intent is one operation; when and by whom it may be asked for once more."""

import pytest

from agentops.audit.models import AuditEntry
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.sdk.errors import OperationRefused
from agentops.sdk.values import Receipt
from agentops.tenancy.models import Membership
from approvals import queries
from approvals.models import Approval
from approvals.services import decide
from operations.models import Operation
from operations.occurrences import FOLLOW_UP, reopen
from operations.states import OperationStatus as S
from runs.models import AgentRun
from runs.services import wake
from tests import factories

ASK = [{"code": "ask", "when": "true", "outcome": "require_approval", "cool_down_hours": 48}]
AGAIN = "turn-3/call-0/refund.create"
HOUR = 3_600


def open_approval(operation: Operation) -> Approval:
    return Approval.objects.get(operation=operation, status="requested")


def say(ledger, approval: Approval, verdict: str) -> None:
    reviewer = factories.person(ledger.tenant)
    decide(
        ledger.tenant.id, approval.id, reviewer=reviewer, verdict=verdict, reason="Not this one.",
        proposal_digest=approval.proposal_digest, channel="rest",
    )  # fmt: skip


@pytest.fixture
def rejected(ledger):
    """An order, and the run whose refund of it a person has rejected."""
    factories.policy(ledger.tenant, "refund.create", ASK)
    order, run = ledger.order(), ledger.run()
    ledger.ask(run, order)
    say(ledger, open_approval(*ledger.operations(order)), "reject")
    return order, run


def test_a_run_that_repeats_itself_is_answered_as_before_whatever_it_words_anew(ledger, rejected):
    order, run = rejected
    for step in ("turn-2/call-0/refund.create", AGAIN):
        told = ledger.ask(run, order, step, reason="late", note="Please!")
        assert isinstance(told, OperationRefused)
        assert (told.status, told.reason) == ("rejected", "Not this one.")
    assert len(ledger.operations(order)) == 1


def test_a_run_that_only_joined_repeats_itself_as_well(ledger):
    factories.policy(ledger.tenant, "refund.create", ASK)
    order, owner, joined = ledger.order(), ledger.run(), ledger.run()
    for run in (owner, joined):
        ledger.ask(run, order)
    ledger.cancel(owner)
    assert isinstance(ledger.ask(joined, order, AGAIN), OperationRefused)
    assert [each.status for each in ledger.operations(order)] == [S.CANCELLED]


def test_what_was_rejected_is_not_asked_again_by_another_run_before_the_cool_down(ledger, rejected):
    order, _ = rejected
    told = ledger.ask(ledger.run(), order)
    assert isinstance(told, OperationRefused)
    assert told.reason == "Not this one."
    ledger.move_clock(47 * HOUR)
    assert isinstance(ledger.ask(ledger.run(), order), OperationRefused)
    assert len(ledger.operations(order)) == 1
    ledger.move_clock(1 * HOUR + 60)
    ledger.ask(ledger.run(), order)
    first, second = ledger.operations(order)
    assert (second.status, second.occurrence, second.previous) == (S.PENDING, 1, first)
    assert second.idempotency_key != first.idempotency_key


def test_what_was_rejected_is_asked_again_where_the_facts_have_changed_and_reviewers_see_that_it_was(
    ledger, rejected
):
    order, _ = rejected
    seen = Approval.objects.get()
    factories.policy(ledger.tenant, "refund.create", factories.ALWAYS)
    ledger.ask(ledger.run(), order, amount_minor=900)  # now less of the charge is left
    done = Operation.objects.exclude(pk=seen.operation_id).get()
    assert done.status in (S.SUCCEEDED, S.PENDING)
    if done.status == S.PENDING:  # the softer guard asks; a person lets it happen
        say(ledger, open_approval(done), "approve")
        ledger.settle(done)
    ledger.ask(ledger.run(), order)
    again = Operation.objects.get(occurrence=1)
    warnings = queries.proposal(open_approval(again))["warnings"]
    assert [(each["code"], each["status"]) for each in warnings] == [
        ("asked_before", "rejected"),
        ("same_target", "succeeded"),
    ]


def test_a_later_message_of_the_customer_lets_the_same_run_ask_again(ledger):
    order, run = ledger.order(), ledger.run()
    ledger.provider.fault("reject", times=1, code="charge_disputed")
    assert isinstance(ledger.ask(run, order), OperationRefused)
    assert isinstance(ledger.ask(run, order, "turn-2/call-0/refund.create"), OperationRefused)
    wake(run.id, FOLLOW_UP, {"text": "The dispute is over."})
    assert isinstance(ledger.ask(run, order, AGAIN), Receipt)
    assert [each.status for each in ledger.operations(order)] == [S.FAILED, S.SUCCEEDED]
    assert isinstance(ledger.ask(run, order), OperationRefused), "a replay of the same step opens nothing"
    assert len(ledger.refunds(order)) == 1


def test_after_success_only_a_person_opens_the_next_occurrence_with_a_reason(ledger):
    order, engineer = ledger.order(), factories.person(ledger.tenant, Membership.Role.ENGINEER)
    ledger.ask(ledger.run(), order)
    (done,) = ledger.operations(order)
    ledger.move_clock(40 * 24 * HOUR)
    assert ledger.ask(ledger.run(), order).operation_id == done.public_id
    given = {"person": engineer, "channel": "admin"}
    with pytest.raises(Invalid):
        reopen(ledger.tenant.id, done.id, reason=" ", **given)
    with pytest.raises(NotYours):
        stranger = factories.person(ledger.tenant)
        reopen(ledger.tenant.id, done.id, reason="Twice.", person=stranger, channel="admin")
    with pytest.raises(NotFound):
        reopen(factories.tenant().id, done.id, reason="Twice.", **given)
    reopen(ledger.tenant.id, done.id, reason="Both lamps of the line were broken.", **given)
    with pytest.raises(Conflict):
        reopen(ledger.tenant.id, done.id, reason="And again.", **given)
    assert AuditEntry.objects.get(verb="operation.reopened").actor == f"user:{engineer.pk}"
    factories.policy(ledger.tenant, "refund.create", ASK)
    ledger.ask(ledger.run(), order)
    _, again = ledger.operations(order)
    assert (again.occurrence, again.previous, again.status) == (1, done, S.PENDING)
    assert f"user:{engineer.pk}" in open_approval(again).requesters, "and does not decide on it"
    say(ledger, open_approval(again), "approve")
    assert ledger.settle(again).status == S.SUCCEEDED
    assert len(ledger.refunds(order)) == 2
    assert ledger.ask(ledger.run(), order).operation_id == again.public_id, "once"
    assert len(ledger.operations(order)) == 2


def test_what_has_not_ended_is_not_reopened(ledger):
    factories.policy(ledger.tenant, "refund.create", ASK)
    order, engineer = ledger.order(), factories.person(ledger.tenant, Membership.Role.ENGINEER)
    ledger.ask(ledger.run(), order)
    (asked,) = ledger.operations(order)
    with pytest.raises(Conflict):
        reopen(ledger.tenant.id, asked.id, reason="Now.", person=engineer, channel="admin")


def test_the_softer_guard_asks_about_another_one_on_the_target_for_thirty_days_whoever_asks(ledger, settings):
    order = ledger.order()
    ledger.ask(ledger.run(), order)
    (done,) = ledger.operations(order)
    stranger = factories.run(ledger.principal, "Refund it.", actor="token:tok_another")
    ledger.ask(stranger, order, amount_minor=500)
    other = ledger.operations(order)[-1]
    approval = open_approval(other)
    assert queries.proposal(approval)["reasons"][0]["code"] == "same_target"
    assert [each["operation_id"] for each in queries.proposal(approval)["warnings"]] == [done.public_id]
    say(ledger, approval, "reject")
    settings.AGENTOPS_SAME_TARGET_DAYS = 3
    ledger.move_clock(3 * 24 * HOUR + 60)
    assert isinstance(ledger.ask(ledger.run(), order, amount_minor=400), Receipt)


def test_an_action_may_switch_the_softer_guard_off(ledger):
    for reference in ("note-1", "note-2"):
        assert isinstance(ledger.note(ledger.run(), reference), Receipt)
    notes = [each for each in ledger.provider.books()["notes"] if each["operation_id"]]
    mine = {each.public_id for each in Operation.objects.filter(action="note.add")}
    assert len([each for each in notes if each["operation_id"] in mine]) == 2


def test_the_same_intent_that_is_alive_is_one_operation_and_every_run_is_answered(ledger):
    factories.policy(ledger.tenant, "refund.create", ASK)
    order, runs = ledger.order(), [ledger.run() for _ in range(3)]
    for run in runs:
        ledger.ask(run, order)
    (made,) = ledger.operations(order)
    say(ledger, open_approval(made), "approve")
    ledger.settle(made)
    answers = {ledger.ask(run, order).provider_ref for run in runs}
    assert answers == {each["id"] for each in ledger.refunds(order)}
    assert AgentRun.objects.filter(inbox__kind="operation").distinct().count() == 3
