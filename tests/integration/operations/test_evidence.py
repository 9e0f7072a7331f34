"""Evidence: each answer speaks of its own request, is stored once and before anything else, and proves what it can."""

import time
from dataclasses import replace

import pytest
from django.db import OperationalError

from agentops.audit.models import AuditEntry
from agentops.kernel.clock import now
from agentops.kernel.problems import Conflict
from approvals.models import Approval
from approvals.services import AUTHORITY, expire_due
from operations import dispatch as dispatching
from operations import queries
from operations.connectors.base import Answer
from operations.connectors.registry import CONNECTORS
from operations.dispatch import depart, loaded, send
from operations.evidence import MAX_TRIES, Evidence, flight_seconds, key_lives, may_be_sent_again
from operations.findings import take
from operations.models import Attempt, Connection, Finding, Incident
from operations.reconcile import carry_on, due, reconcile
from operations.settlement import Says, settle
from operations.states import OperationStatus as S
from operations.states import PersonsVerdict, Source, Verdict
from tests import factories
from tests.stage import sql

STRIPE = CONNECTORS["stripe"]
LEASE_SECONDS = 5 + 10 + 5  # to leave within, to be answered within, and a margin


@pytest.fixture
def order(ledger):
    return ledger.order()


def on_its_way(ledger, order):
    """An operation whose attempt is committed, and whose worker died before its first byte left."""
    with ledger.crashing("F1"):
        ledger.ask(ledger.run(), order)
    return ledger.operations(order)[0]


def in_doubt(ledger, order):
    """The same after its lease ran out, once it may mean something that nothing is found."""
    made = on_its_way(ledger, order)
    for _ in range(20):
        if may_be_sent_again(made):
            return made
        made = reconcile_when_due(ledger, made)
    raise AssertionError(f"{made.status} {made.error_code}")


def reconcile_when_due(ledger, made):
    ledger.move_clock(LEASE_SECONDS)
    reconcile(made.id)
    return loaded(made.id)


def answered(verdict: Verdict, attempt: int, **more) -> Evidence:
    return Evidence(Source.ANSWER, Answer(verdict, **more), attempt=attempt)


def calls(ledger) -> int:
    return ledger.provider.books()["calls"]


def test_what_surely_never_left_is_no_doubt_even_if_it_is_said_after_the_lease(ledger, order, monkeypatch):
    """A worker stopped between its attempt and its first byte: the sweep doubts it, then it wakes, too late to send."""
    weaker = replace(STRIPE.abilities, honours_idempotency_keys=False, key_lifetime_seconds=0)
    monkeypatch.setattr(type(STRIPE), "abilities", weaker)  # no key that would make up for a doubt
    factories.policy(
        ledger.tenant, "refund.create", [{"code": "a", "when": "true", "outcome": "require_approval"}]
    )
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    ledger.approve(made)
    departure = depart(loaded(made.id), AUTHORITY, worker="stopped")
    ledger.move_clock(LEASE_SECONDS + 1)
    reconcile(made.id)
    made.refresh_from_db()
    assert (made.status, made.in_doubt) == (S.ESCALATED, True)
    before = calls(ledger)
    made = send(replace(departure, send_by=departure.send_by - 6))
    assert (made.status, made.in_doubt) == (S.APPROVED, False)
    assert Finding.objects.get(operation=made, source="answer").code == "past_send_by"
    assert calls(ledger) == before
    assert not Incident.objects.filter(kind="outcome_unknown", closed_at=None).exists()
    assert ledger.settle(made).status == S.SUCCEEDED
    assert len(ledger.refunds(order)) == 1


def test_a_no_to_an_earlier_request_moves_nothing_while_a_later_one_is_on_its_way(ledger, order):
    made = in_doubt(ledger, order)
    departure = depart(loaded(made.id), AUTHORITY, worker="two")
    for verdict in (Verdict.NOT_SENT, Verdict.REFUSED, Verdict.UNKNOWN):
        Finding.objects.filter(source="answer").exists() or take(made.id, answered(verdict, 1))
        made.refresh_from_db()
        assert (made.status, made.lease_owner) == (S.EXECUTING, "two")
    assert send(departure).status == S.SUCCEEDED
    assert len(ledger.refunds(order)) == 1


def test_a_refusal_of_one_request_is_none_of_the_other(ledger, order):
    """The first request is in doubt; "already refunded" to the second may be its echo."""
    made = in_doubt(ledger, order)
    departure = depart(loaded(made.id), AUTHORITY, worker="two")
    made = take(made.id, answered(Verdict.REFUSED, departure.attempt, code="charge_already_refunded"))
    assert (made.status, made.in_doubt) == (S.UNKNOWN, True)
    made = take(made.id, answered(Verdict.NOT_SENT, 1))
    assert made.status == S.APPROVED, (
        "the first one never left: so the second one's no counts, and it is asked anew"
    )


def test_a_look_that_shows_only_somebody_elses_effect_proves_nothing_while_ours_may_be_on_its_way(
    ledger, order
):
    made = on_its_way(ledger, order)
    take(made.id, answered(Verdict.UNKNOWN, 1, code="timeout"))
    elses = Evidence(Source.LOOK_UP, Answer(Verdict.REFUSED, code="already_cancelled"))
    made = take(made.id, elses)
    assert (made.status, made.in_doubt) == (S.UNKNOWN, True)
    ledger.move_clock(flight_seconds(made))
    made = take(made.id, elses)
    assert (made.status, made.error_code) == (S.FAILED, "already_cancelled")


def test_days_with_a_refused_credential_use_up_none_of_the_tries_that_a_lost_answer_has(ledger, order):
    made = on_its_way(ledger, order)
    for _ in range(MAX_TRIES + 1):
        made = take(made.id, answered(Verdict.BLOCKED, made.attempts, code="api_key_expired"))
        assert made.status == S.APPROVED
        ledger.move_clock(61)
        assert depart(loaded(made.id), AUTHORITY, worker="two") is not None
        made = loaded(made.id)
    take(made.id, answered(Verdict.UNKNOWN, made.attempts, code="timeout"))
    assert ledger.settle(loaded(made.id)).status == S.SUCCEEDED
    assert len(ledger.refunds(order)) == 1


def test_a_proof_that_is_gone_since_the_look_lets_nothing_be_sent_again(ledger, order):
    made = in_doubt(ledger, order)
    Connection.objects.filter(pk=made.connection_id).update(grade="")
    assert depart(loaded(made.id), AUTHORITY, worker="two") is None
    assert (loaded(made.id).status, loaded(made.id).attempts) == (S.UNKNOWN, 1)


def test_an_answer_is_on_record_once_however_often_its_commit_was_lost(ledger, order):
    made = on_its_way(ledger, order)
    for _ in range(3):
        made = take(made.id, answered(Verdict.NOT_SENT, 1, code="rate_limit"))
    assert Finding.objects.filter(operation=made, source="answer").count() == 1
    assert made.status == S.APPROVED


def test_an_outcome_is_stored_before_anything_else_however_long_postgresql_is_away(
    ledger, order, monkeypatch
):
    real, met = dispatching.take, []

    def away(*args):
        met.append(time.monotonic())
        if len(met) <= 8:
            raise OperationalError("the connection is lost")
        return real(*args)

    monkeypatch.setattr(dispatching, "STORE_AGAIN_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(dispatching, "take", away)
    before = calls(ledger)
    receipt = ledger.ask(ledger.run(), order)
    assert receipt.provider_ref == ledger.refunds(order)[0]["id"]
    assert (len(met), calls(ledger)) == (9, before + 1)


@pytest.mark.parametrize("verdict", [Verdict.CONTRADICTION, Verdict.BUSY, Verdict.UNKNOWN])
def test_evidence_between_the_look_and_the_claim_is_looked_at_first(ledger, order, monkeypatch, verdict):
    made = in_doubt(ledger, order)
    build, before = STRIPE.build, calls(ledger)

    def built(call):
        take(made.id, answered(verdict, 1))
        return build(call)

    monkeypatch.setattr(STRIPE, "build", built)
    assert depart(loaded(made.id), AUTHORITY, worker="two") is None
    assert Attempt.objects.filter(operation=made).count() == 1
    assert calls(ledger) == before


def test_what_contradicts_itself_is_never_sent_again_by_a_machine_even_if_it_is_not_found_later(
    ledger, order
):
    made = on_its_way(ledger, order)
    made = take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.CONTRADICTION, code="other_amount")))
    before = calls(ledger)
    made = ledger.settle(made)
    assert (made.status, made.error_code) == (S.ESCALATED, "contradiction")
    assert calls(ledger) == before


def test_look_ups_that_contradict_end_with_a_person_and_one_alarm(ledger, order, monkeypatch):
    made = on_its_way(ledger, order)
    answer = Answer(Verdict.CONTRADICTION, code="two_effects")
    monkeypatch.setattr(STRIPE, "look_up", lambda call: answer)
    made = ledger.settle(made)
    assert (made.status, made.error_code) == (S.ESCALATED, "look_ups_say_nothing")
    assert Incident.objects.filter(kind="contradiction").count() == 1


def test_a_person_who_was_asked_is_told_when_the_provider_says_it_after_all(ledger, order):
    made = on_its_way(ledger, order)
    made = take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.CONTRADICTION, code="other_amount")))
    made = ledger.settle(made)
    assert Incident.objects.filter(kind="outcome_unknown", closed_at=None).exists()
    made = take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.ACCEPTED, provider_ref="re_1")))
    assert (made.status, made.provider_ref) == (S.EXECUTING, "re_1")
    assert not Incident.objects.filter(kind="outcome_unknown", closed_at=None).exists()
    made = take(
        made.id,
        Evidence(Source.LOOK_UP, Answer(Verdict.APPLIED, provider_ref="re_1", receipt={"id": "re_1"})),
    )
    assert made.status == S.SUCCEEDED


def test_another_reference_is_an_alarm_before_the_end_and_after_it_and_changes_no_receipt(ledger, order):
    """One key, two effects of one operation: whichever is told second is nothing that a machine explains away."""
    made = on_its_way(ledger, order)
    take(made.id, answered(Verdict.ACCEPTED, 1, provider_ref="re_1"))
    second = Answer(Verdict.APPLIED, provider_ref="re_2", receipt={"id": "re_2"})
    made = take(made.id, Evidence(Source.LOOK_UP, second))
    assert (made.status, made.provider_ref, alarms(made)) == (S.SUCCEEDED, "re_2", ["other_reference"])
    made = take(made.id, Evidence(Source.LOOK_UP, second))
    assert alarms(made) == ["other_reference"]  # it only says once more what is known
    found = Answer(Verdict.APPLIED, provider_ref="re_3", receipt={"id": "re_3"})
    for _ in range(2):
        made = take(made.id, Evidence(Source.LOOK_UP, found))
    assert (made.status, made.provider_ref, queries.receipt(made)["id"]) == (S.SUCCEEDED, "re_2", "re_2")
    assert alarms(made) == ["other_reference", "effect_after_end"]
    told = AuditEntry.objects.filter(object_id=made.public_id, security=True).order_by("id")
    assert [entry.verb for entry in told] == ["operation.other_reference", "operation.effect_after_end"]


def alarms(made) -> list[str]:
    incidents = Incident.objects.filter(about=made.public_id, closed_at=None).order_by("id")
    return list(incidents.values_list("kind", flat=True))


GARBAGE = ["re_" + "x" * 400, "re_\x00", "re_\ud800", "re_\u202e1"]


@pytest.mark.parametrize("reference", GARBAGE, ids=["long", "nul", "surrogate", "bidi"])
def test_a_yes_under_a_name_that_cannot_be_kept_is_a_contradiction_and_on_record(ledger, order, reference):
    made = on_its_way(ledger, order)
    garbage = {"provider_ref": reference, "receipt": {"id": reference, "more": [{"a": "\x00\udfff"}]}}
    made = take(made.id, answered(Verdict.APPLIED, 1, code="\x00" * 99, detail=reference, **garbage))
    assert (made.status, made.provider_ref) == (S.UNKNOWN, "")
    found = Finding.objects.get(operation=made, source="answer")
    assert (found.verdict, found.code) == ("contradiction", "unusable_reference")


def test_a_receipt_too_deep_to_be_kept_is_left_out_and_the_effect_is_not(ledger, order):
    made, deep = on_its_way(ledger, order), []
    for _ in range(3_000):
        deep = [deep]
    made = take(made.id, answered(Verdict.APPLIED, 1, provider_ref="re_1", receipt={"metadata": deep}))
    assert (made.status, made.provider_ref) == ("succeeded", "re_1")
    assert queries.receipt(made) == {"provider_ref": "re_1", "found_by": "answer"}


def test_a_key_that_is_in_use_counts_as_a_request_on_its_way_from_then_on(ledger, order):
    made = in_doubt(ledger, order)
    take(made.id, answered(Verdict.BUSY, 1, code="key_in_use"))
    take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.ABSENT)))
    assert not may_be_sent_again(loaded(made.id))
    ledger.move_clock(flight_seconds(made) + 1)
    take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.ABSENT)))
    assert may_be_sent_again(loaded(made.id))


def test_where_another_amount_was_spoken_of_no_person_sends_it_again_either(ledger, order):
    made = in_doubt(ledger, order)
    other = Answer(Verdict.CONTRADICTION, provider_ref="re_9", code="other_amount")
    take(made.id, Evidence(Source.LOOK_UP, other))
    made = take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.ABSENT)))
    assert (made.status, made.error_code) == ("escalated", "contradiction")
    assert key_lives(made, now())
    says = Says(PersonsVerdict.SEND_AGAIN, "It never arrived.")
    with pytest.raises(Conflict) as refused:
        settle(made.tenant_id, made.id, says, person=factories.settler(ledger.tenant), channel="cli")
    assert refused.value.code == "not_safe"


def test_a_pinned_request_that_was_altered_is_not_sent(ledger, order):
    ledger.provider.fault("rate_limited", times=1, door="payments")
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    sql("SET session_replication_role = replica")
    sql("UPDATE operations_attempt SET request_digest = '0' WHERE operation_id = %s", made.id)
    sql("SET session_replication_role = DEFAULT")
    made = ledger.carry_on(made)
    assert (made.status, made.error_code, made.attempts) == ("failed", "record_altered", 1)
    assert AuditEntry.objects.filter(verb="operation.tampered", object_id=made.public_id).exists()
    assert ledger.refunds(order) == []


def test_look_ups_and_tries_over_many_months_are_all_on_record(ledger, order):
    made = in_doubt(ledger, order)
    sql("UPDATE operations_operation SET findings_taken = 40000, attempts = 40000 WHERE id = %s", made.id)
    take(made.id, Evidence(Source.LOOK_UP, Answer(Verdict.ABSENT)))
    made = take(made.id, answered(Verdict.APPLIED, 40_000, provider_ref="re_1", receipt={}))
    assert (made.status, made.findings_taken) == ("succeeded", 40_002)
    assert Finding.objects.filter(operation_id=made.id, number=40_002, attempt=40_000).exists()


def test_what_cannot_be_carried_on_is_put_off_so_that_others_are_due(ledger, order, monkeypatch):
    ledger.provider.fault("rate_limited", times=1, door="payments")
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    ledger.move_clock(120)
    assert due() == [made.id]

    def check(call):
        raise RuntimeError("a fault of the connector")

    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(STRIPE, "check", check)
        carry_on(made.id, AUTHORITY, worker="test")
    assert due() == []
    ledger.move_clock(120)
    assert due() == [made.id]
    assert carry_on(made.id, AUTHORITY, worker="test").status == "succeeded"


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -5.0])
def test_a_provider_that_asks_to_wait_for_ever_is_asked_again_within_reason(ledger, order, seconds):
    made = on_its_way(ledger, order)
    made = take(made.id, answered(Verdict.NOT_SENT, 1, retry_after_seconds=seconds))
    assert made.status == S.APPROVED
    assert (made.next_attempt_at - made.updated_at).total_seconds() < 2 * 3_600


def test_the_time_to_leave_is_over_on_this_machine_before_it_is_over_on_record(ledger, order, monkeypatch):
    """The process is stopped between the two readings: its own clock was read first."""
    factories.policy(
        ledger.tenant, "refund.create", [{"code": "a", "when": "true", "outcome": "require_approval"}]
    )
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    ledger.approve(made)
    real = dispatching.now

    def stopped_before():
        time.sleep(0.2)
        return real()

    monkeypatch.setattr(dispatching, "now", stopped_before)
    departure = depart(loaded(made.id), AUTHORITY, worker="one")
    monkeypatch.undo()
    left_on_record = (Attempt.objects.get(operation=made).send_by - real()).total_seconds()
    assert departure.send_by - dispatching.elapsed() < left_on_record


def test_a_key_is_not_trusted_for_longer_than_the_longest_flight_before_its_end(ledger, order, settings):
    made = on_its_way(ledger, order)
    left = 5 + 10 + 60
    assert key_lives(made, made.key_expires_at - dispatching.timedelta(seconds=left + 1))
    assert not key_lives(made, made.key_expires_at - dispatching.timedelta(seconds=left))
    settings.AGENTOPS_SEND_SECONDS = 40
    assert not key_lives(made, made.key_expires_at - dispatching.timedelta(seconds=left + 29))


def test_a_question_is_withdrawn_where_a_late_answer_has_settled_it(ledger, order):
    """The key's stored error was replayed, nothing was found, a rule asks anew; then the first request's answer comes."""
    made = in_doubt(ledger, order)
    departure = depart(loaded(made.id), AUTHORITY, worker="two")
    take(made.id, answered(Verdict.SPENT, departure.attempt))
    for _ in range(10):
        if loaded(made.id).status == S.APPROVED:
            break
        reconcile_when_due(ledger, made)
    factories.policy(
        ledger.tenant, "refund.create", [{"code": "a", "when": "true", "outcome": "require_approval"}]
    )
    made = ledger.carry_on(loaded(made.id))
    assert (made.status, made.generation) == (S.PENDING, 1)
    made = take(made.id, answered(Verdict.APPLIED, 1, provider_ref="re_late", receipt={"id": "re_late"}))
    assert made.status == S.SUCCEEDED
    assert Approval.objects.get(operation=made).status == "requested"
    assert expire_due() == 1
    assert Approval.objects.get(operation=made).status == "withdrawn"
