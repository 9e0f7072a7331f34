"""Who may say yes, and how much: by person and by group, by action, amount and day; counted over rows, under their lock."""

from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from threading import local as per_thread

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from agentops.audit.models import AuditEntry
from agentops.kernel.clock import now
from agentops.kernel.problems import Conflict, NotYours
from agentops.tenancy import principals
from agentops.tenancy.models import Membership
from approvals import limits, queries, rights
from approvals.models import Approval, Decision, ReviewLimit
from approvals.services import extend, lower
from operations.connectors.base import Answer
from operations.models import Interest
from operations.states import OperationStatus, Verdict
from tests import factories
from tests.stage import together
from tests.world import GIFT

LEAD = Membership.Role.LEAD


def refused(world, approval, person) -> str:
    with pytest.raises(NotYours) as told:
        world.decide(approval, person)
    return told.value.code


def limit(world, **fields) -> ReviewLimit:
    return ReviewLimit.objects.create(tenant=world.tenant, currency="EUR", **fields)


def test_the_actions_own_limit_comes_before_the_general_one_and_a_persons_before_that_of_a_group(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=100_000)
    approval = world.ask()
    own = limit(world, reviewer=person, action=GIFT.name, each_minor=100)
    assert refused(world, approval, person) == "over_limit"
    person.review_limits.all().delete()
    assert refused(world, approval, person) == "over_limit"  # no limit is none
    limit(world, group="reviewer", each_minor=100_000)
    assert queries.who_can_approve(approval) == [person]
    of_group = limit(world, group="reviewer", action=GIFT.name, each_minor=100)
    assert queries.who_can_approve(approval) == []
    assert refused(world, approval, person) == "over_limit"
    of_group.each_minor = own.each_minor = 40_000
    of_group.save()
    assert world.decide(approval, person).status == "approved"
    decision = Decision.objects.get()
    assert (decision.limit_minor, decision.groups) == (40_000, ["reviewer"])


def test_a_day_is_counted_in_the_tenants_zone_by_person_and_by_group_and_what_came_to_nothing_gives_room_again(
    still_world,
):
    world = still_world
    world.tenant.timezone = "Asia/Tokyo"
    world.tenant.save()
    rosa, gita = (factories.person(world.tenant, each_minor=40_000) for _ in range(2))
    rosa.review_limits.update(day_minor=100_000)
    limit(world, group="reviewer", each_minor=0, day_minor=120_000)
    approvals = [world.ask() for _ in range(5)]
    for approval in approvals[:2]:
        world.decide(approval, rosa)
    assert refused(world, approvals[2], rosa) == "over_day"  # hers is 100,000
    assert queries.who_can_approve(approvals[2]) == [gita]
    world.decide(approvals[2], gita)
    assert refused(world, approvals[3], gita) == "over_day"  # that of all of them together
    from approvals.services import revoke

    revoke(world.tenant.id, approvals[2].id, reviewer=gita, reason="Too fast.", channel="admin")
    assert world.decide(approvals[3], gita).status == "approved"
    assert refused(world, approvals[4], gita) == "over_day"
    local = now().timestamp() + 9 * 3600
    world.move_clock(24 * 3600 - local % (24 * 3600) + 1)  # midnight in Tokyo
    if Approval.objects.get(pk=approvals[4].pk).expires_at > now():
        assert world.decide(approvals[4], gita).status == "approved"


def test_a_yes_before_midnight_takes_of_its_own_day_however_late_it_is_sent(world, settings):
    settings.AGENTOPS_HOLD_SECONDS = 3_600
    person = factories.person(world.tenant, each_minor=40_000)
    person.review_limits.update(day_minor=60_000)
    world.move_clock(24 * 3_600 - now().timestamp() % (24 * 3_600) - 1_800)  # half an hour before midnight
    before, after = world.ask(), world.ask()
    world.decide(before, person)
    world.move_clock(2_400)
    world.decide(after, person)
    world.move_clock(1_260)
    assert world.send(before.operation).status == OperationStatus.SUCCEEDED
    world.move_clock(2_400)
    assert world.send(after.operation).status == OperationStatus.SUCCEEDED


def test_a_proposal_that_two_of_a_group_agreed_to_is_counted_once_in_the_groups_day(still_world):
    world = still_world
    rule = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2}
    factories.policy(world.tenant, GIFT.name, [rule])
    people = [factories.person(world.tenant, each_minor=None) for _ in range(2)]
    limit(world, group="reviewer", each_minor=40_000, day_minor=80_000)
    approvals = [world.ask() for _ in range(3)]
    for approval in approvals[:2]:
        assert [world.decide(approval, person).status for person in people] == ["requested", "approved"]
    assert refused(world, approvals[2], people[0]) == "over_day"


def test_what_was_sent_by_a_yes_that_was_taken_back_too_late_still_counts_for_its_day(world):
    person = factories.person(world.tenant, each_minor=40_000)
    person.review_limits.update(day_minor=40_000)
    approval, other = world.ask(), world.ask()
    world.decide(approval, person)
    world.connector.answers.append(Answer(Verdict.UNKNOWN))  # it may have happened
    world.send(approval.operation)
    Approval.objects.filter(pk=approval.pk).update(
        status="revoked", closed_at=now(), closed_by=f"user:{person.pk}"
    )
    assert refused(world, other, person) == "over_day"


def test_a_day_in_a_zone_that_nobody_knows_is_used_up(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=40_000)
    person.review_limits.update(day_minor=40_000)
    world.tenant.timezone = "Mars/Olympus"
    world.tenant.save()
    assert refused(world, world.ask(), person) == "over_day"


def test_two_yes_at_once_of_one_person_do_not_both_fit_a_day_that_has_room_for_one(world, monkeypatch):
    person = factories.person(world.tenant, each_minor=40_000)
    person.review_limits.update(day_minor=60_000)
    first, second = world.ask(), world.ask()
    count, both, looks = limits.used_minor, Barrier(2), per_thread()

    def counts(*args, **more):
        """The second look of each is the one under the lock: where both can be in it, both find room."""
        found = count(*args, **more)
        looks.seen = getattr(looks, "seen", 0) + 1
        if looks.seen == 2:
            with suppress(BrokenBarrierError):
                both.wait(1)
        return found

    monkeypatch.setattr(limits, "used_minor", counts)
    outcomes = together(lambda: world.decide(first, person), lambda: world.decide(second, person))
    assert sorted(type(each).__name__ for each in outcomes) == ["Approval", "NotYours"], outcomes


def test_a_rule_that_names_a_group_is_answered_by_its_members_and_refused_by_anybody(still_world):
    world = still_world
    rule = {"code": "finance", "when": "true", "outcome": "require_approval", "group": "finance"}
    factories.policy(world.tenant, GIFT.name, [rule])
    lead, clerk = (factories.person(world.tenant, LEAD, each_minor=10**6) for _ in range(2))
    approval = world.ask()
    assert refused(world, approval, lead) == "other_group"
    assert queries.who_can_approve(approval) == []
    clerk.groups.add(Group.objects.create(name="acme:finance"))
    assert queries.who_can_approve(approval) == [clerk]
    assert world.decide(approval, clerk).status == "approved"
    other = world.ask()
    Group.objects.get(name="acme:finance").delete()  # whoever is left may still say no
    assert refused(world, other, clerk) == "other_group"
    assert world.decide(other, lead, "reject").status == "rejected"


@pytest.mark.case("D-6")
def test_two_different_people_decide_and_the_person_behind_the_bot_is_neither(still_world):
    world = still_world
    rule = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2}
    factories.policy(world.tenant, GIFT.name, [rule])
    lead_1, lead_2 = (factories.person(world.tenant, LEAD, each_minor=50_000) for _ in range(2))
    support = factories.person(world.tenant, each_minor=5_000)
    from agentops.tenancy import principals

    bot = principals.authenticate(factories.token(world.tenant, person=lead_1), "rest")
    approval = world.ask(factories.run(bot, "A gift, please."), amount_minor=30_000)
    assert refused(world, approval, lead_1) == "own_request"
    assert [refused(world, approval, support) for _ in range(2)] == ["over_limit"] * 2
    logged = AuditEntry.objects.filter(verb="approval.refused_reviewer").order_by("id")
    assert list(logged.values_list("actor", flat=True)) == [f"user:{lead_1.pk}"] + [f"user:{support.pk}"] * 2
    world.decide(approval, lead_2)
    for verdict in ("approve", "reject"):  # nobody counts twice, and nobody takes back half a yes
        with pytest.raises(Conflict) as told:
            world.decide(approval, lead_2, verdict)
        assert told.value.code == "already_answered"
    approval.refresh_from_db()
    assert (approval.status, approval.decisions.count(), approval.required) == ("requested", 1, 2)
    third = factories.person(world.tenant, LEAD, each_minor=50_000)
    assert queries.who_can_approve(approval) == [third]
    assert [rights.why_not(each, approval) for each in (lead_2, third)] == ["already_answered", ""]
    assert world.decide(approval, third).status == "approved"


def joins(world, approval, person):
    """Another run comes to the same intent; `person` is behind that one, and has asked for it too."""
    bot = principals.authenticate(factories.token(world.tenant, person=person), "rest")
    joined = factories.run(bot, "The same gift.")
    with transaction.atomic():
        Interest.objects.create(
            run_id=joined.id, step="turn-1/call-0", tenant_id=world.tenant.id, operation=approval.operation
        )


def test_whoever_joins_in_asking_does_not_decide(still_world):
    world = still_world
    person = factories.person(world.tenant, each_minor=10**6)
    approval = world.ask()
    joins(world, approval, person)
    assert refused(world, approval, person) == "own_request"
    less = {"changes": {"amount_minor": 1}, "reason": "x", "proposal_digest": approval.proposal_digest}
    with pytest.raises(NotYours) as told:
        lower(world.tenant.id, approval.id, reviewer=person, channel="admin", **less)
    assert told.value.code == "own_request", "nor may ask for less of it"
    with pytest.raises(NotYours) as told:
        extend(world.tenant.id, approval.id, reviewer=person, channel="admin")
    assert told.value.code == "own_request", "nor give it more time"


def test_a_yes_of_whoever_joins_in_asking_afterwards_sends_nothing(world):
    approval = world.ask()
    person = factories.person(world.tenant, each_minor=10**6)
    world.decide(approval, person)
    joins(world, approval, person)
    world.send(approval.operation)
    approval.refresh_from_db()
    assert (approval.status, approval.closed_reason) == ("superseded", "approver_asked_for_it")
    assert world.connector.books == {}
    assert refused(world, world.open_of(approval.operation), person) == "own_request"


def test_nobody_is_named_or_told_who_is_no_member_any_more(still_world):
    world = still_world
    stays, left = (factories.person(world.tenant, each_minor=10**6) for _ in range(2))
    approval = world.ask()
    assert queries.who_can_approve(approval) == [stays, left]
    Membership.objects.filter(user=left).delete()
    assert queries.who_can_approve(approval) == [stays]


def test_who_left_the_group_that_a_rule_asks_has_given_a_yes_for_nothing(world):
    rule = {"code": "finance", "when": "true", "outcome": "require_approval", "group": "finance"}
    factories.policy(world.tenant, GIFT.name, [rule])
    finance = Group.objects.create(name="acme:finance")
    clerks = [factories.person(world.tenant, each_minor=40_000) for _ in range(2)]
    for clerk in clerks:
        clerk.groups.add(finance)
    approval = world.ask()
    world.decide(approval, clerks[0])
    clerks[0].groups.remove(finance)
    world.send(approval.operation)
    approval.refresh_from_db()
    assert (approval.status, approval.closed_reason) == ("superseded", "approver_left_group")
    assert world.connector.books == {}
    again = world.open_of(approval.operation)
    assert (again.group, again.escalate_to) == (
        "finance",
        "",
    )  # silence never widens a group of the tenant's own
    world.decide(again, clerks[1])
    world.send(again.operation)
    assert len(world.connector.books) == 1
