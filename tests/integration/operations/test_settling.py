"""A person settles what machines cannot find out: four words, each with its rule, merged with whatever else is found."""

from functools import partial
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from agentops.audit.entries import SYSTEM
from agentops.audit.models import AuditEntry
from agentops.engine.control import cancel_run, receipt_of
from agentops.kernel.problems import Conflict, Invalid, NotYours
from agentops.tenancy.models import Membership
from approvals.services import AUTHORITY, revoke
from operations import queries
from operations.connections import remove_credential, set_credential
from operations.dispatch import depart, dispatch, loaded, send
from operations.models import Incident, Interest, SettleLimit, Settlement
from operations.reconcile import carry_on, look_up
from operations.settlement import Says, is_within_limit, settle, words
from operations.states import PersonsVerdict as P
from runs.models import AgentRun
from tests import factories
from tests.provider import STRIPE_KEY
from tests.stage import LARGE, operation, shown, sql, together, types

DENY = [{"code": "not_now", "when": "true", "outcome": "deny"}]
ASK = [{"code": "ask", "when": "true", "outcome": "require_approval"}]
PROOF = "Their support says that it never arrived."


@pytest.fixture
def in_doubt(stage):
    """`in_doubt(fault)`: a refund that was sent once under that fault, nobody at work; (order, operation)."""

    def make(fault="drop_before_commit"):
        order = stage.order(LARGE)
        approval = stage.until_asked(stage.ask_refund(order))
        stage.rest()
        stage.decide(approval, stage.reviewer())
        departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
        stage.provider.fault(fault, times=1)
        assert send(departure).status == "unknown"
        return order, loaded(approval.operation_id)

    return make


@pytest.fixture
def escalated(stage, in_doubt, move_clock):
    """One that never arrived, and that policy would not have sent again: a person is asked."""
    order, made = in_doubt()
    move_clock(60)
    factories.policy(stage.tenant, "refund.create", DENY)
    carry_on(made.id, AUTHORITY, worker="test")
    factories.policy(stage.tenant, "refund.create", ASK)
    assert loaded(made.id).status == "escalated"
    assert Incident.objects.get(about=made.public_id).closed_at is None
    return order, loaded(made.id)


@pytest.fixture
def settler(stage):
    return factories.settler(stage.tenant)


def say(made, person, verdict, words="Looked at it.", channel="cli", **more):
    return settle(made.tenant_id, made.id, Says(verdict, words, **more), person=person, channel=channel)


def refused(code, work, *args, **more):
    with pytest.raises((Conflict, Invalid, NotYours)) as caught:
        work(*args, **more)
    assert caught.value.code == code, caught.value.detail


def test_it_happened_is_believed_where_the_provider_shows_that_reference(stage, in_doubt, settler):
    order, made = in_doubt("commit_then_drop")
    (refund,) = stage.refunds(order)
    refused("reference_required", say, made, settler, P.HAPPENED)
    refused("reason_required", say, made, settler, P.HAPPENED, " ", provider_ref=refund["id"])
    done = say(made, settler, P.HAPPENED, "Seen in their dashboard.", provider_ref=refund["id"])
    assert (done.how, done.operation.status) == ("settled", "succeeded")
    made = loaded(made.id)
    receipt = queries.receipt(made)
    assert (made.provider_ref, receipt["found_by"], receipt["amount"]) == (refund["id"], "person", LARGE)
    last = queries.findings(made)[-1]
    assert (last["source"], last["verdict"], last["actor"]) == ("person", "applied", f"user:{settler.pk}")
    entry = AuditEntry.objects.get(verb="operation.settled_by_person", object_id=made.public_id)
    assert (entry.actor, entry.channel) == (f"user:{settler.pk}", "cli")
    settlement = Settlement.objects.get(operation=made)
    assert (settlement.closed_as, words(settlement)) == ("settled", "Seen in their dashboard.")
    with (
        connection.cursor() as cursor
    ):  # the words rest sealed: in no clear column of the operation or its run
        cursor.execute(
            "SELECT operations_operation::text || runs_agentrun::text FROM operations_operation, runs_agentrun"
        )
        assert all("dashboard" not in row for (row,) in cursor.fetchall())
    assert types(stage.carry_on(made.run))[-1] == "run.completed"


def test_a_reference_that_the_provider_does_not_show_is_refused(stage, in_doubt, settler):
    _order, made = in_doubt()
    other = stage.carry_on(stage.ask_refund(stage.order(2_000)))
    stage.rest()
    for reference in ("re_invented", operation(other).provider_ref):
        refused("not_confirmed", say, made, settler, P.HAPPENED, provider_ref=reference)
    assert loaded(made.id).status == "unknown"
    assert not Settlement.objects.exists()


def test_what_the_provider_shows_comes_before_what_a_person_says(stage, in_doubt, settler, move_clock):
    order, made = in_doubt("commit_then_drop")
    move_clock(60)
    done = say(made, settler, P.DID_NOT, PROOF)
    assert (done.how, done.operation.status) == ("quicker", "succeeded")
    order, made = in_doubt("commit_then_drop")
    done = say(made, settler, P.HAPPENED, provider_ref="re_another")
    assert (done.how, loaded(made.id).status) == ("quicker", "succeeded")
    assert loaded(made.id).provider_ref == stage.refunds(order)[0]["id"]


def test_it_did_not_needs_a_proof_and_silence_on_the_wire(stage, in_doubt, settler, move_clock):
    _, made = in_doubt()
    refused("reason_required", say, made, settler, P.DID_NOT, "")
    refused("not_quiet", say, made, settler, P.DID_NOT, PROOF)
    refused("not_quiet", say, made, settler, P.SEND_AGAIN, PROOF)
    assert loaded(made.id).status == "unknown"
    move_clock(60)
    done = say(made, settler, P.DID_NOT, PROOF)
    assert (done.how, done.operation.status, done.operation.error_code) == ("settled", "failed", "did_not")
    assert types(stage.carry_on(made.run))[-1] == "run.completed"
    assert say(made, settler, P.KEEP_LOOKING).how == "quicker"


def test_send_again_is_approved_checked_anew_and_happens_once(stage, escalated, settler):
    order, made = escalated
    done = say(made, settler, P.SEND_AGAIN)
    assert (done.how, done.operation.status, done.operation.in_doubt) == ("settled", "approved", True)
    assert Incident.objects.get(about=made.public_id).closed_at is not None
    stage.carry_on(made.run)
    assert (loaded(made.id).status, len(stage.refunds(order))) == ("succeeded", 1)
    assert loaded(made.id).generation == 0


def test_send_again_under_a_rule_that_denies_goes_back_to_people_and_calls_nothing_undone(
    stage, escalated, settler
):
    order, made = escalated
    say(made, settler, P.SEND_AGAIN)
    factories.policy(stage.tenant, "refund.create", DENY)
    dispatch(made.id, AUTHORITY, worker="test")
    after = loaded(made.id)
    assert (after.status, after.error_code, after.in_doubt) == ("escalated", "not_now", True)
    assert stage.refunds(order) == []


def test_a_run_that_is_cancelled_after_send_again_still_finds_out_what_happened(stage, escalated, settler):
    _order, made = escalated
    say(made, settler, P.SEND_AGAIN)
    cancel_run(stage.tenant.id, made.run_id, actor=SYSTEM, reason="x")
    assert loaded(made.id).status == "unknown"
    run = AgentRun.objects.get(pk=made.run_id)
    assert [effect.outcome for effect in receipt_of(run).effects] == ["unknown"]
    assert not run.is_terminal


def test_a_yes_that_is_taken_back_after_send_again_is_asked_of_nobody_before_it_is_known_what_happened(
    stage, escalated, settler
):
    _order, made = escalated
    say(made, settler, P.SEND_AGAIN)
    reviewer = stage.reviewer()
    revoke(stage.tenant.id, made.authority_id, reviewer=reviewer, reason="Wait.", channel="cli")
    after = loaded(made.id)
    assert (after.status, after.in_doubt) == ("unknown", True)
    assert [each.status for each in made.approvals.all()] == ["revoked"]


def test_send_again_is_refused_where_nothing_would_stop_a_second_effect(stage, escalated, settler):
    _, made = escalated
    sql("UPDATE operations_operation SET key_expires_at = agentops_now()")
    refused("not_safe", say, made, settler, P.SEND_AGAIN)
    stage.provider.fault("unreachable")
    refused("not_safe", say, made, settler, P.SEND_AGAIN)
    assert loaded(made.id).status == "escalated"


def test_what_the_provider_has_once_accepted_nobody_sends_again(escalated, settler):
    _, made = escalated
    sql("UPDATE operations_operation SET accepted_at = agentops_now()")
    refused("not_safe", say, made, settler, P.SEND_AGAIN)
    assert loaded(made.id).status == "escalated"


def test_keep_looking_holds_back_the_question_for_as_long_as_it_says(stage, escalated, settler, move_clock):
    _, made = escalated
    sql("UPDATE operations_operation SET key_expires_at = agentops_now()")
    done = say(made, settler, P.KEEP_LOOKING, look_hours=2)
    assert (done.how, done.operation.status) == ("settled", "unknown")
    for _ in range(3):
        move_clock(600)
        assert look_up(made.id).status == "unknown"
    move_clock(2 * 3600)
    assert look_up(made.id).status == "escalated"


def test_above_the_limit_a_second_person_confirms_and_nobody_twice(stage, escalated, settler):
    _order, made = escalated
    low, second = (
        factories.settler(stage.tenant, each_minor=LARGE - 1),
        factories.settler(stage.tenant, each_minor=0),
    )
    assert say(made, low, P.DID_NOT, PROOF).how == "waits"
    assert loaded(made.id).status == "escalated"
    refused("already_asked", say, made, low, P.DID_NOT, PROOF)
    assert say(made, second, P.SEND_AGAIN).how == "waits"  # another word is another question
    assert say(made, low, P.DID_NOT, PROOF).how == "waits"
    done = say(made, second, P.DID_NOT, "I have read it too.")
    assert (done.how, done.operation.status) == ("settled", "failed")
    rows = Settlement.objects.order_by("asked_at").values_list("by", "confirmed_by", "closed_as")
    assert list(rows) == [
        (low.pk, None, "replaced"), (second.pk, None, "replaced"), (low.pk, second.pk, "settled"),
    ]  # fmt: skip
    verbs = AuditEntry.objects.filter(object_id=made.public_id, verb__startswith="operation.settle")
    assert verbs.filter(verb="operation.settle_confirmed", actor=f"user:{second.pk}").count() == 1


def test_the_word_of_somebody_who_has_lost_the_right_since_is_none(stage, escalated):
    _order, made = escalated
    gone, second, third = (factories.settler(stage.tenant, each_minor=0) for _ in range(3))
    assert say(made, gone, P.DID_NOT, PROOF).how == "waits"
    gone.groups.clear()
    assert say(made, second, P.DID_NOT, PROOF).how == "waits"
    assert say(made, third, P.DID_NOT, PROOF).how == "settled"
    (settled,) = Settlement.objects.filter(closed_as="settled")
    assert (settled.by, settled.confirmed_by) == (second, third)


def test_the_effect_of_another_operation_proves_nothing_even_where_nobody_can_be_asked(stage, escalated):
    _order, made = escalated
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    other = operation(stage.carry_on(stage.ask_refund(stage.order(2_000))))
    stage.rest()
    stage.provider.fault("unreachable")
    for person in (factories.settler(stage.tenant), factories.settler(stage.tenant)):
        refused("of_another", say, made, person, P.HAPPENED, provider_ref=other.provider_ref)
    assert loaded(made.id).status == "escalated"
    assert not Settlement.objects.exists()


def test_the_actions_own_limit_comes_before_the_general_one_and_no_other_actions_counts(stage, escalated):
    _order, made = escalated
    person = factories.settler(stage.tenant, each_minor=0)
    assert not is_within_limit(person, made)

    def limit(action: str, each_minor: int, currency: str = "EUR") -> None:
        named = {"tenant": stage.tenant, "person": person, "action": action, "currency": currency}
        SettleLimit.objects.update_or_create(**named, defaults={"each_minor": each_minor})

    limit("order.cancel", LARGE)
    limit("refund.create", LARGE, "USD")
    assert not is_within_limit(person, made)
    limit("refund.create", LARGE)
    assert is_within_limit(person, made)  # above the general one, within the action's own
    strict = factories.settler(stage.tenant, each_minor=LARGE)
    own = {"person": strict, "action": "refund.create", "currency": "EUR", "each_minor": LARGE - 1}
    SettleLimit.objects.create(tenant=stage.tenant, **own)
    assert say(made, strict, P.SEND_AGAIN).how == "waits"  # within the general one, above the action's own
    assert say(made, person, P.DID_NOT, PROOF).how == "settled"


def test_nobody_settles_alone_what_they_asked_for(stage, in_doubt, settler, move_clock):
    _, made = in_doubt()
    other = factories.settler(stage.tenant)
    AgentRun.objects.filter(pk=made.run_id).update(actor=f"user:{settler.pk}")
    move_clock(60)
    assert say(made, settler, P.DID_NOT, PROOF).how == "waits"
    assert say(made, other, P.DID_NOT, PROOF).how == "settled"
    _, made = in_doubt()
    AgentRun.objects.filter(pk=made.run_id).update(actor=f"user:{settler.pk}")
    move_clock(60)
    low = factories.settler(stage.tenant, each_minor=0)
    assert say(made, low, P.DID_NOT, PROOF).how == "waits"
    refused("own_request", say, made, settler, P.DID_NOT, PROOF)


def test_nor_do_they_settle_alone_what_another_run_of_theirs_came_to(stage, in_doubt, settler, move_clock):
    _, made = in_doubt()
    joined = AgentRun.objects.get(pk=stage.ask_refund(stage.order(LARGE)).pk)
    AgentRun.objects.filter(pk=joined.pk).update(actor=f"user:{settler.pk}")
    Interest.objects.create(run=joined, step="turn-1/call-9", tenant=stage.tenant, operation=made)
    move_clock(60)
    assert say(made, settler, P.DID_NOT, PROOF).how == "waits"
    low = factories.settler(stage.tenant, each_minor=0)
    assert say(made, low, P.KEEP_LOOKING).how == "settled"
    assert say(made, low, P.DID_NOT, PROOF).how == "waits"
    refused("own_request", say, made, settler, P.DID_NOT, PROOF)


def test_without_the_provider_a_word_needs_two_people(stage, escalated, settler):
    _, made = escalated
    stage.provider.fault("unreachable")
    assert say(made, settler, P.DID_NOT, PROOF).how == "waits"
    assert say(made, factories.settler(stage.tenant), P.DID_NOT, PROOF).operation.status == "failed"


def test_without_the_credential_nothing_can_be_asked_which_is_an_outage_and_no_answer(
    stage, in_doubt, settler, move_clock
):
    _order, made = in_doubt("commit_then_drop")
    remove_credential(made.connection, SYSTEM)
    for _ in range(12):
        move_clock(600)
        assert look_up(made.id).status == "unknown"
    incident = Incident.objects.get(closed_at=None)
    assert (incident.kind, incident.about) == ("credential_missing", str(made.connection_id))
    refused("not_safe", say, made, settler, P.SEND_AGAIN)
    assert say(made, settler, P.DID_NOT, PROOF).how == "waits"  # for a second person: nobody could be asked
    set_credential(made.connection, STRIPE_KEY, SYSTEM)
    assert look_up(made.id).status == "succeeded"
    assert not Incident.objects.filter(closed_at=None).exists()


def test_who_has_not_the_right_is_refused_and_noted(stage, escalated):
    _, made = escalated
    stranger = factories.settler(factories.tenant("globex"))
    for person in (stage.reviewer(), factories.person(stage.tenant, Membership.Role.LEAD), stranger):
        refused("no_right", say, made, person, P.DID_NOT, PROOF)
    noted = AuditEntry.objects.filter(verb="operation.refused_settler", object_id=made.public_id)
    assert [entry.security for entry in noted] == [True] * 3


def test_two_people_at_once_settle_once_and_the_slower_is_told(stage, escalated):
    _, made = escalated
    people = [factories.settler(stage.tenant) for _ in range(4)]
    outcomes = together(*(partial(say, made, person, P.DID_NOT, PROOF) for person in people))
    assert sorted(each.how for each in outcomes) == ["quicker"] * 3 + ["settled"]
    assert types(made.run).count("operation.failed") == 1


def test_a_person_and_the_reconciler_at_once_settle_once(stage, in_doubt, settler):
    order, made = in_doubt("commit_then_drop")
    reference = stage.refunds(order)[0]["id"]
    said, looked = together(
        partial(say, made, settler, P.HAPPENED, provider_ref=reference), partial(look_up, made.id)
    )
    assert said.how in ("settled", "quicker")
    assert looked.status == "succeeded"
    assert types(made.run).count("operation.succeeded") == 1
    assert Incident.objects.filter(about=made.public_id).count() == 0


def run_command(*words):
    out = StringIO()
    call_command("operation", *words, stdout=out)
    return out.getvalue()


def test_the_command_shows_and_settles_in_the_name_of_a_person(stage, escalated, settler):
    _, made = escalated
    text = run_command("show", made.public_id)
    assert "Refund €129.00" in text
    assert "A person must settle it (escalated)" in text
    assert "A look-up at the provider: not found." in text
    assert "settle" in text.splitlines()[-1]
    keep = ("settle", made.public_id, "did-not", "--as", settler.username)
    for typed, said in (
        (("show", "op_nothing"), "There is no operation op_nothing"),
        ((*keep[:-1], "nobody", "--reason", PROOF), "There is nobody called nobody"),
        (keep, "Say what proves that it did not happen; it is kept."),
        (
            (*keep[:-1], stage.reviewer().username, "--reason", PROOF),
            "You may not settle operations of Acme.",
        ),
    ):
        with pytest.raises(CommandError, match=said):
            run_command(*typed)
    assert run_command(*keep, "--reason", PROOF) == f"Settled: {made} is failed (failed).\n"
    assert "has moved on meanwhile" in run_command(*keep, "--reason", PROOF)
    assert shown(made.run)
