"""Lower, take back, extend, decide together: each is one move that the operation's row allows, or nothing."""

import pytest
from django.db import connection

from agentops.audit.models import AuditEntry
from agentops.kernel.clock import now
from agentops.kernel.problems import Conflict, Invalid, NotYours
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey, Membership
from approvals import queries
from approvals.bulk import Named
from approvals.endings import moved_sentence
from approvals.models import Approval, PolicyDecision, ReviewLimit
from approvals.services import decide_each, extend, lower, revoke
from operations.connectors.base import Answer
from operations.services import params
from operations.states import OperationStatus, Verdict
from runs.models import AgentRun
from tests import factories
from tests.stage import story
from tests.world import GIFT

S = OperationStatus
LEAD = Membership.Role.LEAD


def lowered(world, approval, person, **more):
    given = {"changes": {"amount_minor": 5_000}, "reason": "Half is enough.", "channel": "admin",
             "proposal_digest": approval.proposal_digest, **more}  # fmt: skip
    return lower(world.tenant.id, approval.id, reviewer=person, **given)


def revoked(world, approval, person, reason="I was too fast."):
    return revoke(world.tenant.id, approval.id, reviewer=person, reason=reason, channel="admin")


def longer(world, approval, person):
    return extend(world.tenant.id, approval.id, reviewer=person, channel="admin")


def code_of(work, kind=(Conflict, Invalid, NotYours)) -> str:
    with pytest.raises(kind) as told:
        work()
    return told.value.code


def test_lowered_it_is_the_same_operation_another_proposal_and_nobody_has_asked_for_it(world):
    person = factories.person(world.tenant, each_minor=5_000)  # the whole would be above this limit
    old = world.ask(memo="for the trouble")
    key = old.operation.operation_key
    new = lowered(world, old, person)
    old.refresh_from_db()
    operation = new.operation
    operation.refresh_from_db()
    assert (operation.pk, operation.status, operation.operation_key) == (old.operation_id, S.PENDING, key)
    assert (operation.amount_minor, params(operation)["amount_minor"]) == (5_000, 5_000)
    assert (old.status, old.closed_reason, old.closed_by) == ("superseded", "lowered", f"user:{person.pk}")
    assert new.proposal_digest != old.proposal_digest
    assert new.requesters == old.requesters
    moved = queries.proposal(new)["moved"]
    assert moved["changes"] == [{"name": "amount_minor", "kind": "money", "then": 40_000, "now": 5_000}]
    assert moved_sentence(moved, currency="EUR") == "A reviewer lowered it. Amount: €400.00 → €50.00."
    assert PolicyDecision.objects.filter(operation=operation).count() == 2  # the rules were asked again
    assert AuditEntry.objects.get(verb="approval.lowered").actor == f"user:{person.pk}"
    assert [data["amount_minor"] for type, data in story(operation.run) if type == "operation.proposed"] == [
        40_000,
        5_000,
    ]
    assert code_of(lambda: world.decide(old, person)) == "already_decided"
    assert (
        code_of(lambda: world.decide(new, person, proposal_digest=old.proposal_digest)) == "digest_mismatch"
    )
    world.decide(new, person)
    assert world.send(operation).status == S.SUCCEEDED
    (sent,) = world.sent(operation)
    assert (sent["amount_minor"], sent["memo"]) == (5_000, "for the trouble")


def test_only_less_of_what_the_action_declares_is_lowered_and_only_while_it_waits(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=10**6)
    approval = world.ask()
    for changes in (
        {"amount_minor": 40_000},
        {"amount_minor": 0},
        {"amount_minor": "1"},
        {"amount_minor": True},
    ):
        assert code_of(lambda c=changes: lowered(world, approval, person, changes=c)) == "not_lower"
    for changes in ({"memo": "x"}, {"account": "acc-9"}, {}):
        assert code_of(lambda c=changes: lowered(world, approval, person, changes=c)) == "not_adjustable"
    assert code_of(lambda: lowered(world, approval, person, reason=" ")) == "reason_required"
    assert code_of(lambda: lowered(world, approval, person, proposal_digest="x")) == "digest_mismatch"
    engineer = factories.person(world.tenant, Membership.Role.ENGINEER, each_minor=None)
    assert code_of(lambda: lowered(world, approval, engineer)) == "no_right"
    own = world.ask(world.run(actor=f"user:{person.pk}"))
    assert code_of(lambda: lowered(world, own, person)) == "own_request"
    world.connector.facts["status"] = "frozen"
    assert code_of(lambda: lowered(world, approval, person)) == "guard_broken"
    world.connector.reset()
    approval.refresh_from_db()
    assert approval.status == "requested"
    world.decide(approval, person)
    assert code_of(lambda: lowered(world, approval, person)) == "already_decided"


def test_what_was_tried_once_is_not_lowered_any_more(world):
    person = factories.person(world.tenant, each_minor=40_000)
    approval = world.ask()
    world.decide(approval, person)
    world.connector.answers.append(Answer(Verdict.NOT_SENT))
    assert world.send(approval.operation).attempts == 1
    revoked(world, approval, person)
    again = world.open_of(approval.operation)
    assert code_of(lambda: lowered(world, again, person)) == "already_tried"
    world.decide(again, person)
    world.move_clock(60)
    assert world.send(again.operation).status == S.SUCCEEDED


def test_the_rules_are_asked_again_for_less_and_may_deny_it(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=10**6)
    approval = world.ask()
    few = {"code": "not.so.little", "when": "operation.amount_minor < 10000", "outcome": "deny"}
    factories.policy(world.tenant, GIFT.name, [few, *factories.ASK])
    parked = AgentRun.objects.filter(pk=approval.operation.run_id)
    parked.update(status="waiting_for_approval", blocked_on=["approval"])
    assert lowered(world, approval, person) is None
    assert parked.get().status == "running"  # it waits for nobody any more
    approval.operation.refresh_from_db()
    assert (approval.operation.status, approval.operation.error_code) == (S.REJECTED, "not.so.little")
    small = {"code": "small", "when": "operation.amount_minor < 10000", "outcome": "allow"}
    factories.policy(world.tenant, GIFT.name, [small, *factories.ASK])
    new = lowered(
        world, world.ask(), person
    )  # rules would let so little pass: whoever lowered it still says yes
    assert (new.status, new.operation.status) == ("requested", S.PENDING)


def test_a_yes_is_taken_back_while_nothing_has_left_and_the_question_is_asked_anew(world, settings):
    settings.AGENTOPS_HOLD_SECONDS = 60
    person, other = (factories.person(world.tenant, each_minor=40_000) for _ in range(2))
    approval = world.ask()
    assert code_of(lambda: revoked(world, approval, person)) == "not_approved"
    world.decide(approval, person)
    assert world.send(approval.operation).status == S.APPROVED  # the hold
    assert code_of(lambda: revoked(world, approval, other, reason="")) == "reason_required"
    engineer = factories.person(world.tenant, Membership.Role.ENGINEER, each_minor=None)
    assert code_of(lambda: revoked(world, approval, engineer)) == "no_right"
    taken = revoked(world, approval, other)
    assert (taken.status, taken.closed_by, taken.consumed_at) == ("revoked", f"user:{other.pk}", None)
    again = world.open_of(approval.operation)
    assert (again.operation.status, again.proposal_digest) == (S.PENDING, approval.proposal_digest)
    assert queries.proposal(again)["moved"] == {"since": str(approval), "why": "revoked", "changes": []}
    world.move_clock(61)
    assert world.send(approval.operation).status == S.PENDING
    world.decide(again, person)
    world.move_clock(61)
    assert world.send(again.operation).status == S.SUCCEEDED
    with pytest.raises(Conflict) as late:
        revoked(world, again, other)
    assert late.value.code == "already_sent"
    assert late.value.extra["receipt"]["amount"] == 40_000
    assert len(world.sent(again.operation)) == 1


def test_a_revoked_yes_meets_the_rules_in_force(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=40_000)
    approval = world.ask()
    world.decide(approval, person)
    factories.policy(world.tenant, GIFT.name, factories.ALWAYS)
    revoked(world, approval, person)
    again = world.open_of(
        approval.operation
    )  # rules would let it pass: a person took it back, so a person decides
    assert again.operation.status == S.PENDING
    world.decide(again, person)
    factories.policy(world.tenant, GIFT.name, [{"code": "stop", "when": "true", "outcome": "deny"}])
    revoked(world, again, person)
    again.operation.refresh_from_db()
    assert (again.operation.status, again.operation.error_code) == (S.REJECTED, "stop")


ALTERED = {
    "the amount of the operation": "UPDATE operations_operation SET amount_minor = 50 WHERE id = %(operation)s",
    "the amount of the approval": "UPDATE approvals_approval SET amount_minor = 50 WHERE id = %(approval)s",
    "the currency of the approval": "UPDATE approvals_approval SET currency = 'JPY' WHERE id = %(approval)s",
    "the action of the approval": "UPDATE approvals_approval SET action = 'note.add' WHERE id = %(approval)s",
    "what people were shown": "UPDATE approvals_approval SET sealed_proposal = '\\x00' WHERE id = %(approval)s",
    "what it rests on": "UPDATE approvals_approval SET sealed_grounds = '\\x00' WHERE id = %(approval)s",
}


def altered(approval, what):
    with connection.cursor() as cursor:
        cursor.execute(ALTERED[what], {"operation": approval.operation_id, "approval": approval.id})


def alarms() -> list[str]:
    return list(AuditEntry.objects.filter(security=True).values_list("verb", flat=True))


@pytest.mark.parametrize("what", ALTERED)
def test_what_was_altered_by_sql_is_neither_approved_nor_lowered_by_anybody_and_leaves_by_a_no(
    still_world, what
):
    world = still_world
    small, lead = (factories.person(world.tenant, each_minor=limit) for limit in (100, 40_000))
    ReviewLimit.objects.create(tenant=world.tenant, reviewer=lead, currency="JPY", each_minor=40_000)
    approval = world.ask()
    altered(approval, what)
    assert code_of(lambda: world.decide(approval, lead)) == "record_altered"
    assert code_of(lambda: world.decide(approval, small)) in ("record_altered", "over_limit")
    assert code_of(lambda: lowered(world, approval, lead)) == "record_altered"
    assert set(alarms()) == {"operation.tampered"}
    assert world.decide(approval, small, "reject").status == "rejected"


@pytest.mark.parametrize("what", ALTERED)
def test_a_yes_to_what_was_altered_since_can_be_taken_back_and_nobody_is_asked_to_agree_to_that(
    still_world, what
):
    world = still_world
    person = factories.person(world.tenant, each_minor=40_000)
    approval = world.ask()
    world.decide(approval, person)
    altered(approval, what)
    assert revoked(world, approval, person).status == "revoked"
    approval.operation.refresh_from_db()
    assert (approval.operation.status, approval.operation.error_code) == (S.FAILED, "record_altered")
    assert not Approval.objects.filter(status="requested").exists()
    assert alarms() == ["operation.tampered"]


def test_who_lowers_what_another_has_lowered_is_told_so_and_it_is_no_alarm(still_world):
    world = still_world
    person, other = (factories.person(world.tenant, each_minor=40_000) for _ in range(2))
    approval = world.ask()
    lowered(world, approval, person)
    assert code_of(lambda: lowered(world, approval, other)) == "already_decided"
    assert alarms() == []


def test_time_is_given_once_and_as_much_again(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=1)
    approval = world.ask()
    own = world.ask(world.run(actor=f"user:{person.pk}"))
    world.move_clock(23 * 3600)
    before = approval.expires_at
    extended = longer(world, approval, person)
    assert extended.expires_at - before == before - approval.requested_at
    assert code_of(lambda: longer(world, approval, person)) == "already_extended"
    assert code_of(lambda: longer(world, own, person)) == "own_request"
    world.move_clock(2 * 3600)
    lead = factories.person(world.tenant, LEAD, each_minor=40_000)
    assert code_of(lambda: longer(world, own, lead)) == "expired"
    own.refresh_from_db()
    assert (own.status, own.closed_by) == (
        "expired",
        "system",
    )  # whoever notices it closes it: no worker is needed
    assert world.decide(approval, lead).status == "approved"
    rule = {"code": "endless", "when": "true", "outcome": "require_approval", "expires_hours": None}
    factories.policy(world.tenant, GIFT.name, [rule])
    endless = world.ask()
    assert endless.expires_at is None
    assert code_of(lambda: longer(world, endless, person)) == "never_expires"
    assert [
        event["expires_at"] for type, event in story(endless.operation.run) if type == "approval.requested"
    ] == [None]


def test_several_are_decided_with_one_press_each_for_itself_within_one_action_and_one_risk(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=40_000)
    good, late, moved, own, large = (
        world.ask(),
        world.ask(),
        world.ask(),
        world.ask(world.run(actor=f"user:{person.pk}")),
        world.ask(amount_minor=45_000),
    )
    world.decide(late, factories.person(world.tenant, each_minor=40_000), "reject")
    named = [Named(each.id, each.proposal_digest) for each in (good, late, own, large)]
    named.append(Named(moved.id, good.proposal_digest))

    def press(what):
        return decide_each(
            world.tenant.id, what, reviewer=person, verdict="approve", reason="", channel="admin"
        )

    answers = press(named)
    assert [(each.status, each.code) for each in answers] == [
        ("approved", ""),
        ("", "already_decided"),
        ("", "own_request"),
        ("", "over_limit"),
        ("", "digest_mismatch"),
    ]
    assert [each.approval_id for each in answers] == [str(each) for each in (good, late, own, large, moved)]
    high = [{"code": "high", "when": "true", "outcome": "require_approval", "risk": "high"}]
    factories.policy(world.tenant, GIFT.name, high)
    risky = world.ask()
    for wrong in (
        [Named(risky.id, risky.proposal_digest), Named(moved.id, moved.proposal_digest)],
        [],
        named * 30,
    ):
        assert code_of(lambda w=wrong: press(w)) in ("mixed", "too_many")
    foreign = factories.person(factories.tenant("globex"), each_minor=10**6)
    answers = decide_each(
        foreign.memberships.get().tenant_id,
        named[:1],
        reviewer=foreign,
        verdict="approve",
        reason="",
        channel="admin",
    )
    assert [each.code for each in answers] == ["not_found"]
    assert Approval.objects.filter(status="requested").count() == 4


@pytest.mark.parametrize(
    ("verdict", "code", "status"),
    [("approve", "record_altered", "approved"), ("reject", "erased", "rejected")],
)
def test_one_whose_words_were_erased_keeps_no_other_from_being_decided_with_it(
    still_world, verdict, code, status
):
    world = still_world
    person = factories.person(world.tenant, each_minor=40_000)
    shut, good = (world.ask(world.run(actor=f"customer:C-{number}")) for number in (8, 9))
    DataKey.objects.filter(pk=shut.data_key_id).update(wrapped=None, erased_at=now())
    vault.forget()
    named = [Named(each.id, each.proposal_digest) for each in (shut, good)]
    answers = decide_each(
        world.tenant.id, named, reviewer=person, verdict=verdict, reason="Seen.", channel="admin"
    )
    assert [(each.status, each.code) for each in answers] == [("", code), (status, "")]


def test_a_right_that_is_lost_while_the_facts_are_read_changes_nothing(still_world, monkeypatch):
    world = still_world
    person = factories.person(world.tenant)
    approval, check = world.ask(), world.connector.check

    def meanwhile(call):
        person.groups.clear()
        return check(call)

    monkeypatch.setattr(world.connector, "check", meanwhile)
    with pytest.raises(NotYours) as told:
        lowered(world, approval, person)
    assert told.value.code == "no_right"
    approval.refresh_from_db()
    assert approval.status == "requested"
    assert AuditEntry.objects.filter(verb="approval.refused_reviewer").count() == 1
