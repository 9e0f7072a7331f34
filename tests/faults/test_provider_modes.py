"""Every way in which the provider misbehaves, once through the whole system: the status is never guessed, the books
show one effect or none, and what follows is what the table of answers says."""

from typing import Any

import pytest

from agentops.audit.models import AuditEntry
from approvals.services import AUTHORITY
from operations import queries
from operations.dispatch import depart, dispatch, loaded, send
from operations.models import Attempt, Finding, Incident, Operation
from operations.reconcile import carry_on, look_up
from operations.states import OperationStatus as S
from operations.targets import remaining_minor
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, SMALL, answer, operation, story, types

UNTIL_QUIET_SECONDS = 5 + 1 + 2  # to leave within, to be answered within, and to be seen within


@pytest.fixture(autouse=True)
def _impatient(settings):
    settings.AGENTOPS_SEND_SECONDS = 1


@pytest.fixture
def order(stage):
    return stage.order(SMALL)


@pytest.fixture
def allowed(stage):
    """A refund that was allowed and not yet sent, and nobody at work."""
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    return loaded(approval.operation_id)


@pytest.fixture
def two_allowed(stage):
    """Two of them, of two orders."""
    approvals = [stage.until_asked(stage.ask_refund(stage.order(LARGE))) for _ in range(2)]
    stage.rest()
    for approval in approvals:
        stage.decide(approval, stage.reviewer())
    return [loaded(approval.operation_id) for approval in approvals]


def has(status: str):
    return lambda run: run.operations.filter(
        action__in=["refund.create", "order.cancel"], status=status
    ).exists()


def path(run: AgentRun, made: Operation) -> list[str]:
    """Where the operation went, as its run's log tells it."""
    return [
        type.partition(".")[2]
        for type, data in story(run)
        if type.startswith("operation.") and data["operation_id"] == made.public_id
    ]


def calls(stage) -> int:
    return stage.provider.books()["calls"]


def verdicts(made: Operation, source: str = "answer") -> list[str]:
    found = Finding.objects.filter(operation=made, source=source).order_by("number")
    return list(found.values_list("verdict", flat=True))


LOST = [
    ("commit_then_drop", {}),
    ("commit_then_500", {}),
    ("slow", {"seconds": 1.4}),
    ("slow_after", {"seconds": 1.4}),
]


@pytest.mark.parametrize(("mode", "more"), LOST, ids=[mode for mode, _ in LOST])
def test_a_lost_answer_is_unknown_then_looked_up_and_nothing_is_sent_again(stage, order, mode, more):
    before = calls(stage)
    stage.provider.fault(mode, times=1, door="payments", **more)
    run = stage.as_time_passes(stage.ask_refund(order), speed=5)
    made = operation(run)
    assert run.status == "completed"
    assert path(run, made) == ["proposed", "approved", "dispatched", "unknown", "succeeded"]
    assert verdicts(made) == ["unknown"]
    (refund,) = stage.refunds(order)
    assert queries.receipt(made)["id"] == refund["id"]
    assert calls(stage) == before + 1
    assert len(stage.mails()) == 1


def test_a_slow_answer_in_time_is_an_answer(stage, order):
    stage.provider.fault("slow", times=1, seconds=0.3, door="payments")
    run = stage.carry_on(stage.ask_refund(order))
    assert verdicts(operation(run)) == ["applied"]
    assert len(stage.refunds(order)) == 1


def test_what_never_arrived_is_sent_again_as_the_same_bytes_but_not_before_it_is_quiet(stage, order):
    before = calls(stage)
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    stage.as_time_passes(run, lambda row: "absent" in verdicts(operation(row), "look_up"), speed=2)
    assert calls(stage) == before + 1
    stage.rest()
    stage.move_clock(UNTIL_QUIET_SECONDS - 5)
    carry_on(operation(run).id, AUTHORITY, worker="test")
    assert operation(run).status == S.UNKNOWN
    assert calls(stage) == before + 1
    run = stage.as_time_passes(run)
    made = operation(run)
    assert path(run, made) == ["proposed", "approved", "dispatched", "unknown", "dispatched", "succeeded"]
    first, second = Attempt.objects.filter(operation=made).order_by("number")
    assert (first.request_digest, first.idempotency_key) == (second.request_digest, second.idempotency_key)
    assert len(stage.refunds(order)) == 1
    assert calls(stage) == before + 2


def test_a_refusal_fails_it_and_the_customer_is_told_why(stage, order):
    stage.provider.fault("reject", times=1, code="charge_disputed", door="payments")
    run = stage.carry_on(stage.ask_refund(order))
    made = operation(run)
    assert run.status == "completed"
    assert (made.status, made.error_code) == (S.FAILED, "charge_disputed")
    assert made.error_detail.rstrip(".") in answer(run)
    assert stage.refunds(order) == []
    assert stage.mails() == []


def test_a_rate_limit_is_waited_out_under_the_same_generation(stage, order):
    stage.provider.fault("rate_limited", times=2, door="payments")
    run = stage.as_time_passes(stage.ask_refund(order))
    made = operation(run)
    assert run.status == "completed"
    assert verdicts(made) == ["not_sent", "not_sent", "applied"]
    assert {each.generation for each in made.tries.all()} == {0}
    assert len(stage.refunds(order)) == 1


def test_a_rate_limit_without_end_is_given_up_with_nothing_sent(stage, order):
    stage.provider.fault("rate_limited", door="payments")
    run = stage.as_time_passes(stage.ask_refund(order), speed=200)
    made = operation(run)
    assert (made.status, made.error_code, made.attempts) == (S.FAILED, "gave_up", 5)
    assert run.status == "completed"
    assert stage.refunds(order) == []


def test_a_refused_credential_holds_what_was_allowed_behind_one_incident(stage, two_allowed):
    stage.provider.fault("auth_failed")
    for held in two_allowed:
        assert dispatch(held.id, AUTHORITY, worker="test").status == S.APPROVED
    incident = Incident.objects.get()
    assert (incident.kind, incident.closed_at) == ("credential_refused", None)
    stage.provider.fault("ok")
    for held in two_allowed:
        assert stage.as_time_passes(held.run).status == "completed"
        assert len(stage.refunds({"id": held.target_name})) == 1
    incident.refresh_from_db()
    assert incident.closed_at is not None


def test_a_credential_that_is_refused_only_when_it_is_sent_holds_it_too(stage, allowed):
    departure = depart(allowed, AUTHORITY, worker="test")
    stage.provider.fault("auth_failed")
    made = send(departure)
    assert (made.status, made.in_doubt) == (S.APPROVED, False)
    assert Incident.objects.get(closed_at=None).kind == "credential_refused"
    stage.provider.fault("ok")
    stage.as_time_passes(allowed.run)
    assert len(stage.refunds({"id": allowed.target_name})) == 1


def test_while_nobody_answers_what_was_allowed_waits_behind_one_incident(stage, two_allowed):
    stage.provider.fault("unreachable")
    for held in two_allowed:
        assert dispatch(held.id, AUTHORITY, worker="test").status == S.APPROVED
    assert Incident.objects.get().kind == "provider_unreachable"
    stage.provider.fault("ok")
    for held in two_allowed:
        assert stage.as_time_passes(held.run).status == "completed"
        assert len(stage.refunds({"id": held.target_name})) == 1
    assert Incident.objects.get().closed_at is not None


def test_a_refused_connection_is_surely_not_sent(stage, allowed):
    departure = depart(allowed, AUTHORITY, worker="test")
    stage.provider.fault("unreachable")
    made = send(departure)
    assert (made.status, made.in_doubt, verdicts(made)) == (S.APPROVED, False, ["not_sent"])
    stage.provider.fault("ok")
    stage.as_time_passes(allowed.run)
    assert len(stage.refunds({"id": allowed.target_name})) == 1


def test_an_outage_is_no_ambiguity(stage, allowed):
    """The answer is lost, then nobody answers look-ups for hours: it stays unknown behind one incident, nobody is asked."""
    stage.provider.fault("commit_then_drop", times=1)
    assert dispatch(allowed.id, AUTHORITY, worker="test").status == S.UNKNOWN
    stage.provider.fault("unreachable")
    for _ in range(12):
        stage.move_clock(600)
        assert carry_on(allowed.id, AUTHORITY, worker="test").status == S.UNKNOWN
    assert verdicts(allowed, "look_up") == ["unreachable"] * 12
    assert Incident.objects.get().kind == "provider_unreachable"
    stage.provider.fault("ok")
    stage.as_time_passes(allowed.run, speed=600)
    assert operation(allowed.run).status == S.SUCCEEDED
    assert len(stage.refunds({"id": allowed.target_name})) == 1
    assert not Incident.objects.filter(closed_at=None).exists()


@pytest.mark.parametrize(
    ("settled", "status"), [("succeeded", S.SUCCEEDED), ("failed", S.FAILED), ("canceled", S.FAILED)]
)
def test_what_is_accepted_is_followed_by_its_reference_and_never_sent_again(stage, order, settled, status):
    before = calls(stage)
    stage.provider.fault("pending_then", times=1, seconds=0.5, status=settled)
    run = stage.carry_on(stage.ask_refund(order), lambda row: operation_accepted(row))
    made = operation(run)
    assert (made.status, made.key_expires_at) == (S.EXECUTING, None)
    assert made.provider_ref == stage.refunds(order)[0]["id"]
    run = stage.as_time_passes(run)
    made = operation(run)
    assert made.status == status
    assert run.status == "completed"
    assert path(run, made)[-2:] == ["accepted", str(status)]
    assert calls(stage) == before + 1
    assert len(stage.mails()) == (1 if status == S.SUCCEEDED else 0)


def operation_accepted(run: AgentRun) -> bool:
    return run.operations.filter(accepted_at__isnull=False).exists()


def test_a_refund_that_bounces_stays_succeeded_and_says_that_it_was_undone(stage, order):
    stage.provider.fault("bounce_after", times=1, seconds=0.3)
    run = stage.carry_on(stage.ask_refund(order))
    made = operation(run)
    assert remaining_minor(made.target, but=made.target_id) == 0
    while stage.refunds(order)[0]["status"] == "succeeded":
        pass
    made = look_up(made.id)
    assert made.status == S.SUCCEEDED
    made.refresh_from_db()
    assert made.reversed_at is not None
    assert Incident.objects.get().kind == "effect_reversed"
    assert AuditEntry.objects.filter(verb="operation.reversed").count() == 1
    assert types(run)[-1] == "run.completed"
    assert remaining_minor(made.target, but=made.target_id) == SMALL
    look_up(made.id)
    assert AuditEntry.objects.filter(verb="operation.reversed").count() == 1


def test_an_empty_yes_is_a_contradiction_that_only_a_person_can_settle(stage, order):
    before = calls(stage)
    stage.provider.fault("empty_200", times=1, door="payments")
    run = stage.as_time_passes(stage.ask_refund(order), has(S.ESCALATED))
    made = operation(run)
    assert verdicts(made) == ["contradiction"]
    assert calls(stage) == before + 1
    assert AuditEntry.objects.filter(verb="operation.contradiction", security=True).exists()
    assert Incident.objects.filter(kind="outcome_unknown", about=made.public_id, closed_at=None).exists()
    assert (run.status, run.blocked_on) == ("running", ["operation"])
    assert stage.refunds(order) == []


def test_a_yes_to_another_amount_is_looked_up_and_the_books_decide(stage, order):
    before = calls(stage)
    stage.provider.fault("wrong_amount", times=1)
    run = stage.as_time_passes(stage.ask_refund(order))
    made = operation(run)
    assert (made.status, verdicts(made)) == (S.SUCCEEDED, ["contradiction"])
    assert queries.receipt(made)["amount"] == SMALL
    assert AuditEntry.objects.filter(verb="operation.contradiction", security=True).exists()
    assert calls(stage) == before + 1


def test_not_found_within_the_declared_lag_means_nothing(stage, order):
    before = calls(stage)
    stage.provider.fault("lookup_lag", seconds=1)
    stage.provider.fault("commit_then_drop", times=1, door="payments")
    run = stage.as_time_passes(stage.ask_refund(order), speed=4)
    made = operation(run)
    assert "absent" in verdicts(made, "look_up")
    assert made.status == S.SUCCEEDED
    assert calls(stage) == before + 1


@pytest.mark.parametrize("ability", [("no_key_support", {}), ("forget_keys_after", {"seconds": 0.1})])
@pytest.mark.parametrize("mode", ["commit_then_drop", "drop_before_commit"])
def test_without_keys_the_look_up_alone_still_lets_it_happen_once(stage, order, ability, mode):
    stage.provider.fault(ability[0], **ability[1])
    stage.provider.fault(mode, times=1, door="payments")
    run = stage.as_time_passes(stage.ask_refund(order), speed=10)
    assert operation(run).status == S.SUCCEEDED
    assert len(stage.refunds(order)) == 1


def test_a_twin_that_is_still_in_flight_is_waited_for(stage, order):
    """The first request is slow beyond its time-out and beyond what look-ups may lag; its twin is told 409."""
    stage.provider.fault("slow", times=1, seconds=3, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    stage.move_clock(UNTIL_QUIET_SECONDS)
    stage.carry_on(run, lambda row: "busy" in verdicts(operation(row)))
    made = operation(run)
    assert made.status == S.UNKNOWN
    run = stage.as_time_passes(run, speed=10)
    assert operation(run).status == S.SUCCEEDED
    assert len(stage.refunds(order)) == 1


def test_once_the_key_has_died_absence_is_a_persons_to_judge_and_nothing_is_sent(stage, order):
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    stage.rest()
    stage.move_clock(24 * 3600)
    made = carry_on(operation(run).id, AUTHORITY, worker="test")
    assert (made.status, made.error_code) == (S.ESCALATED, "absent_key_expired")
    assert Attempt.objects.filter(operation=made).count() == 1
    assert stage.refunds(order) == []


def test_a_stored_error_that_is_replayed_ends_that_generation_only_when_nothing_was_done(stage, order):
    """A 500 stored under our key, with the effect: it is replayed, looked up, and found."""
    stage.provider.fault("lookup_lag", seconds=2)
    stage.provider.fault("commit_then_500", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    stage.move_clock(UNTIL_QUIET_SECONDS)
    stage.carry_on(run, lambda row: "spent" in verdicts(operation(row)))
    run = stage.as_time_passes(run, speed=3)
    assert (operation(run).status, operation(run).generation) == (S.SUCCEEDED, 0)
    assert len(stage.refunds(order)) == 1


def test_a_refusal_that_may_echo_our_own_earlier_try_is_looked_up_before_it_is_believed(stage, order):
    """The key is forgotten, and a look-up lagged once: the second try is told that nothing is left to refund."""
    stage.provider.fault("forget_keys_after", seconds=0.1)
    stage.provider.fault("lookup_lag", seconds=1.5)
    stage.provider.fault("commit_then_drop", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    stage.move_clock(UNTIL_QUIET_SECONDS)
    stage.carry_on(run, lambda row: "refused" in verdicts(operation(row)))
    assert operation(run).status in (S.UNKNOWN, S.SUCCEEDED)
    run = stage.as_time_passes(run, speed=2)
    assert operation(run).status == S.SUCCEEDED
    assert len(stage.refunds(order)) == 1


SHOP: list[tuple[str, dict[str, Any], str, int]] = [
    ("commit_then_drop", {}, S.SUCCEEDED, 1),
    ("commit_then_500", {}, S.SUCCEEDED, 1),
    ("drop_before_commit", {}, S.SUCCEEDED, 1),
    ("slow_after", {"seconds": 1.4}, S.SUCCEEDED, 1),
    ("rate_limited", {}, S.SUCCEEDED, 1),
    ("reject", {"code": "order_locked"}, S.FAILED, 0),
    ("empty_200", {}, S.ESCALATED, 0),
    ("auth_failed", {}, S.SUCCEEDED, 1),
    ("unreachable", {}, S.SUCCEEDED, 1),
]


@pytest.mark.parametrize(("mode", "more", "status", "count"), SHOP, ids=[mode for mode, *_ in SHOP])
def test_the_shop_misbehaves_and_an_order_is_cancelled_once_or_not_at_all(
    stage, order, mode, more, status, count
):
    approval = stage.until_asked(stage.ask_cancel(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    stage.provider.fault(mode, times=1, door="shop", **more)
    made = send(departure)
    assert made.status in (S.UNKNOWN, S.APPROVED, S.FAILED)
    stage.provider.fault("ok")
    run = stage.as_time_passes(made.run, lambda row: row.is_terminal or has(S.ESCALATED)(row))
    made = operation(run, "order.cancel")
    assert made.status == status
    assert len(stage.cancellations(order)) == count


def test_a_folder_that_cannot_be_written_sends_no_mail_and_is_tried_again(stage, order):
    stage.mail_folder.write_text("in the way")
    run = stage.carry_on(
        stage.ask_refund(order), lambda row: row.operations.filter(action="mail.send", attempts=1).exists()
    )
    stage.mail_folder.unlink()
    run = stage.as_time_passes(run)
    assert run.status == "completed"
    assert len(stage.mails()) == 1
    assert operation(run, "mail.send").attempts >= 2


def test_a_run_that_is_ended_while_its_operation_is_in_doubt_sends_nothing_again(stage, order):
    from agentops.audit.entries import SYSTEM
    from agentops.engine.control import cancel_run

    before = calls(stage)
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    receipt = cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="Called off.")
    assert [each.outcome for each in receipt.effects] == ["unknown"]
    run = stage.as_time_passes(run, has(S.ESCALATED))
    assert (run.status, run.ending) == ("running", "cancelled")
    assert operation(run).error_code == "run_cancelled"
    assert calls(stage) == before + 1


def test_a_run_that_is_ended_while_its_operation_waits_for_another_try_ends_with_nothing_sent(stage, order):
    from agentops.audit.entries import SYSTEM
    from agentops.engine.control import cancel_run

    approval = stage.until_asked(stage.ask_cancel(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    run = departure and loaded(approval.operation_id).run
    receipt = cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="Called off.")
    assert [each.outcome for each in receipt.effects] == ["cannot_be_stopped"]
    stage.provider.fault("rate_limited", times=1, door="shop")
    assert send(departure).status == S.APPROVED
    run = stage.as_time_passes(run)
    assert run.status == "cancelled"
    assert operation(run, "order.cancel").status == S.CANCELLED
    assert stage.cancellations(order) == []
    assert types(run)[-1] == "run.cancelled"


def test_policy_may_deny_while_an_operation_is_in_doubt_and_a_person_finds_out(stage, order):
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    run = stage.carry_on(stage.ask_refund(order), has(S.UNKNOWN))
    factories.policy(stage.tenant, "refund.create", [{"code": "stop", "when": "true", "outcome": "deny"}])
    run = stage.as_time_passes(run, has(S.ESCALATED))
    assert operation(run).error_code == "stop"
    assert stage.refunds(order) == []
