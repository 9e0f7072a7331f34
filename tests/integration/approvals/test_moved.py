"""BOUND-APPROVAL and FRESH-AUTHORITY, in one loop: everything that a yes covers or rests on is moved, before it and after it.

What may follow is one of four things: it is sent and the move is recorded; it is asked again, showing only the difference;
it is refused; nobody can say yes any more. It is never sent wrongly, and never asked for nothing.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from agentops.audit.models import AuditEntry
from agentops.kernel.ids import parse
from agentops.kernel.problems import Conflict, NotYours
from agentops.kernel.sealed import Place
from agentops.tenancy import vault
from agentops.tenancy.models import ApiToken, Membership, Tenant, User
from approvals import queries
from approvals.endings import lapse_sentence
from approvals.models import Approval
from approvals.sentences import field_label
from operations.connectors import registry
from operations.occurrences import reopen
from operations.states import OperationStatus
from runs.models import AgentRelease, AgentRun
from tests import factories
from tests.stage import sql
from tests.world import GIFT, World, with_version

S = OperationStatus


@dataclass
class Case:
    """One proposal, and the person who decides it."""

    world: World
    approval: Approval
    reviewer: User
    monkeypatch: pytest.MonkeyPatch

    @property
    def operation(self):
        self.approval.operation.refresh_from_db()
        return self.approval.operation


type Move = Callable[[Case], Any]


@dataclass(frozen=True)
class Expected:
    """`before`: what the press of Approve is answered where it was moved before; `after`: the end of a dispatch."""

    status: OperationStatus
    changes: frozenset[str] = frozenset()  # shown where it is asked again; recorded where it is sent
    code: str = ""
    pressed: str = ""  # the code with which Approve is refused where it moved before the decision
    alarm: str = ""


def sent(*changes: str) -> Expected:
    return Expected(S.SUCCEEDED, frozenset(changes))


def again(code: str, *changes: str, pressed: str = "") -> Expected:
    return Expected(S.PENDING, frozenset(changes), code, pressed)


def refused(status: OperationStatus, code: str, pressed: str = "", alarm: str = "") -> Expected:
    return Expected(status, frozenset(), code, pressed, alarm)


ALTERED = refused(S.FAILED, "record_altered", "record_altered", "operation.tampered")


def fact(**moved: Any) -> Move:
    return lambda case: case.world.connector.facts.update(moved)


def column(statement: str, *values: Any) -> Move:
    return lambda case: sql(
        f"UPDATE operations_operation SET {statement} WHERE id = %s", *values, case.approval.operation_id
    )


def other_params(case: Case) -> None:
    other = case.world.ask(amount_minor=1)
    source = "(SELECT sealed_params FROM operations_operation WHERE id = %s)"
    sql(
        f"UPDATE operations_operation SET sealed_params = {source} WHERE id = %s",
        other.operation_id,
        case.approval.operation_id,
    )


def other_connection(case: Case) -> None:
    made = factories.connection(case.world.tenant, "world", "http://127.0.0.1:8", name=f"w{case.reviewer.pk}")
    column("connection_id = %s", made.id)(case)


def policy(**rule: Any) -> Move:
    given = {"code": "ask", "when": "true", "outcome": "require_approval", "risk": "elevated", **rule}
    return lambda case: factories.policy(case.world.tenant, GIFT.name, [given])


def token(case: Case) -> Any:
    name = AgentRun.objects.get(operations=case.approval.operation).principal
    return ApiToken.objects.filter(pk=parse("tok", name.removeprefix("token:")))


def requester_deactivated(case: Case) -> None:
    person = factories.person(case.world.tenant)
    token(case).update(person=person)
    User.objects.filter(pk=person.pk).update(is_active=False)


def becomes_requester(case: Case) -> None:
    token(case).update(person=case.reviewer)


def other_release(case: Case) -> None:
    run = AgentRun.objects.select_related("release").get(operations=case.approval.operation)
    made = AgentRelease.objects.create(
        tenant=case.world.tenant, agent=run.agent, digest=f"c1:release:{case.approval.id.hex}", manifest={}
    )
    AgentRun.objects.filter(pk=run.pk).update(release=made)


def other_version(case: Case) -> None:
    case.monkeypatch.setitem(registry.ACTIONS, GIFT.name, with_version(GIFT, 2))


def limit(**changes: Any) -> Move:
    return lambda case: case.reviewer.review_limits.update(**changes)


CASES: dict[str, tuple[Move, Expected]] = {
    # What will be sent: each of it is under the digest.
    "action": (column("action = 'mail.send'"), ALTERED),
    "version of the action": (column("action_version = 7"), ALTERED),
    "target": (column("target_name = 'acc-other'"), ALTERED),
    "connection": (other_connection, ALTERED),
    "parameters": (other_params, ALTERED),
    "unreadable parameters": (column("sealed_params = sealed_params || '\\x00'::bytea"), ALTERED),
    "amount": (column("amount_minor = 1"), ALTERED),
    "currency": (column("currency = 'USD'"), ALTERED),
    "occurrence": (column("occurrence = 1"), ALTERED),
    # Facts, each with its guard or without.
    "status breaks": (fact(status="frozen"), again("guard_broken:status", "status")),
    "owner breaks": (fact(owner="C-2"), again("guard_broken:owner", "owner")),
    "refundable breaks": (
        fact(refundable_minor=20_000),
        again("guard_broken:refundable_minor", "refundable_minor"),
    ),
    "refundable moves": (fact(refundable_minor=45_000), sent("refundable_minor")),
    "no guard": (fact(tier="silver"), sent("tier")),
    "two move, one breaks": (
        fact(tier="silver", refundable_minor=20_000),
        again("guard_broken:refundable_minor", "refundable_minor", "tier"),
    ),
    "nothing": (lambda case: None, sent()),
    # Rights of whoever says yes.
    "right": (lambda case: case.reviewer.groups.clear(), again("approver_lost_right", pressed="no_right")),
    "active": (
        lambda case: User.objects.filter(pk=case.reviewer.pk).update(is_active=False),
        again("approver_lost_right", pressed="no_right"),
    ),
    "limit": (limit(each_minor=39_999), again("approver_limit_lowered", pressed="over_limit")),
    "limit of another currency": (
        limit(currency="USD"),
        again("approver_limit_lowered", pressed="over_limit"),
    ),
    "limit of a day": (limit(day_minor=39_999), again("approver_limit_lowered", pressed="over_day")),
    "limit that still covers it": (limit(each_minor=40_000, day_minor=40_000), sent()),
    "reviewer behind the token": (
        becomes_requester,
        again("approver_asked_for_it", pressed="own_request"),
    ),
    # Rights of whoever asked.
    "scope of the requester": (
        lambda case: token(case).update(scopes=["runs:read"]),
        refused(S.REJECTED, "requester_lost_right"),
    ),
    "token of the requester": (
        lambda case: token(case).update(revoked_at="2026-01-01T00:00:00Z"),
        refused(S.REJECTED, "requester_lost_right"),
    ),
    "person of the requester": (requester_deactivated, refused(S.REJECTED, "requester_lost_right")),
    "token that ran out": (lambda case: token(case).update(expires_at="2026-01-01T00:00:00Z"), sent()),
    # Rules.
    "denies": (policy(outcome="deny", code="stop"), refused(S.REJECTED, "stop")),
    "cannot be evaluated": (policy(when="operation.nothing > 1"), refused(S.REJECTED, "policy_error")),
    "two people": (policy(required=2), again("policy_asks_more", "people")),
    "a group": (policy(group="lead"), again("policy_asks_more", "group")),
    "another rule": (policy(code="other"), sent("rule", "policy")),
    "another version": (policy(), sent("policy")),
    "another hold": (policy(hold_seconds=60), sent("policy")),
    "allows": (policy(outcome="allow"), sent("policy")),
    # Where it all stands.
    "release": (other_release, sent("release")),
    "release with another action": (other_version, again("action_changed", "action_version")),
    "tenant": (
        lambda case: Tenant.objects.update(state=Tenant.State.SUSPENDED),
        refused(S.CANCELLED, "tenant_suspended"),
    ),
    "time": (
        lambda case: case.world.move_clock(24 * 3600 + 1),
        again("approval_expired", pressed="expired"),
    ),
}  # fmt: skip


def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> Case:
    world.connector.reset()
    Tenant.objects.update(state=Tenant.State.ACTIVE)
    monkeypatch.setitem(registry.ACTIONS, GIFT.name, GIFT)
    factories.policy(world.tenant, GIFT.name, factories.ASK)
    return Case(world, world.ask(), factories.person(world.tenant, each_minor=40_000), monkeypatch)


@pytest.mark.case("C-3")
@pytest.mark.case("C-4")
def test_whatever_moves_between_a_request_and_its_sending_is_recorded_asked_again_or_refused(
    world, monkeypatch
):
    wrong = {}
    for name, (move, expected) in CASES.items():
        for phase in ("before the decision", "after the decision"):
            case = asked(world, monkeypatch)
            alarms = AuditEntry.objects.filter(security=True).count()
            try:
                played(case, move, expected, phase)
                assert world.sent(case.operation) == [] or expected.status == S.SUCCEEDED
                raised = list(
                    AuditEntry.objects.filter(security=True).order_by("id").values_list("verb", flat=True)
                )[alarms:]
                assert set(raised) == alarms_of(expected, phase)
                if phase == "after the decision":
                    pages_say(case, expected)
            except (AssertionError, pytest.fail.Exception) as fault:
                wrong[f"{name}, {phase}"] = str(fault).splitlines()[0]
    assert wrong == {}


def alarms_of(expected: Expected, phase: str) -> set[str]:
    if phase == "before the decision" and expected.pressed == "no_right":
        return {"approval.refused_reviewer"}
    return {expected.alarm} - {""}


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (
            "authority_id = (SELECT id FROM approvals_approval WHERE consumed_at IS NOT NULL)",
            "approval_spent",
        ),
        ("authorised_digest = 'c1:proposal:0'", "record_altered"),
        (
            "authority_id = (SELECT id FROM approvals_approval WHERE status = 'rejected')",
            "approval_of_another",
        ),
    ],
)
def test_a_yes_that_was_given_to_something_else_is_a_security_event_and_no_operation(
    world, monkeypatch, statement, code
):
    spent, rejected, case = (asked(world, monkeypatch) for _ in range(3))
    world.decide(spent.approval, spent.reviewer)
    world.send(spent.operation)
    world.decide(rejected.approval, rejected.reviewer, "reject")
    world.decide(case.approval, case.reviewer)
    column(statement)(case)
    world.send(case.operation)
    assert (case.operation.status, case.operation.error_code) == (S.FAILED, code)
    assert world.sent(case.operation) == []
    assert AuditEntry.objects.filter(security=True).count() == 1


def test_an_approval_whose_own_row_was_altered_is_no_permission(world, monkeypatch):
    case = asked(world, monkeypatch)
    world.decide(case.approval, case.reviewer)
    sql("UPDATE approvals_approval SET proposal_digest = 'c1:proposal:0' WHERE id = %s", case.approval.id)
    world.send(case.operation)
    assert (case.operation.status, case.operation.error_code) == (S.FAILED, "approval_altered")
    assert AuditEntry.objects.get(security=True).verb == "approval.misused"
    small = asked(world, monkeypatch)
    world.decide(small.approval, small.reviewer)
    sql("UPDATE approvals_approval SET amount_minor = 1 WHERE id = %s", small.approval.id)
    world.send(small.operation)
    assert (small.operation.status, small.operation.error_code) == (S.FAILED, "approval_altered")
    two = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2}
    factories.policy(world.tenant, GIFT.name, [two])
    approval = world.ask()
    world.decide(approval, case.reviewer)  # one of two
    sql("UPDATE approvals_approval SET status = 'approved', closed_at = now() WHERE id = %s", approval.id)
    sql(
        "UPDATE operations_operation SET status = 'approved', authority_kind = 'approval', authority_id = %s,"
        " authorised_digest = %s WHERE id = %s",
        approval.id,
        approval.proposal_digest,
        approval.operation_id,
    )
    world.send(approval.operation)
    approval.operation.refresh_from_db()
    assert (approval.operation.status, approval.operation.error_code) == (S.FAILED, "approval_unanswered")
    assert world.sent(approval.operation) == []
    assert AuditEntry.objects.filter(security=True, verb="approval.misused").count() == 3


def test_after_two_rounds_of_broken_ground_a_person_must_reopen_it(world, monkeypatch):
    case = asked(world, monkeypatch)
    for round in range(3):
        world.connector.reset()
        approval = world.open_of(case.operation)
        assert approval.round == round
        world.decide(approval, case.reviewer)
        world.connector.facts["status"] = f"frozen {round}"
        world.send(case.operation)
    assert (case.operation.status, case.operation.error_code) == (S.REJECTED, "asked_too_often")
    assert world.sent(case.operation) == []
    world.connector.reset()
    again = world.run()
    assert (
        world.propose(again, account=case.operation.target_name) == case.operation
    )  # no machine asks it again
    engineer = factories.person(world.tenant, Membership.Role.ENGINEER, each_minor=None)
    reopen(world.tenant.id, case.operation.id, person=engineer, reason="Seen to it.", channel="cli")
    made = world.propose(world.run(), account=case.operation.target_name)
    assert (made.occurrence, made.previous) == (1, case.operation)
    assert f"user:{engineer.pk}" in world.open_of(made).requesters


def pages_say(case: Case, expected: Expected) -> None:
    """What a reader is told: recorded, asked again with only the difference, or that it no longer stood."""
    reader, _ = User.objects.get_or_create(username="ada", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(reader)

    def page(of: Approval) -> str:
        answer = client.get(f"/admin/approvals/{of.public_id}/")
        assert answer.status_code == 200
        return answer.content.decode().partition('class="review-head"')[2]

    def shown(text: str, head: str) -> set[str]:
        if head not in text:
            return set()
        table = text[text.index(head) : text.index("What changes")]
        return set(re.findall(r'<th scope="row">([^<]*)</th>', table))

    labels = {html.escape(field_label(name)) for name in expected.changes}
    told = page(case.approval)
    assert client.get(f"/admin/operations/{case.operation.public_id}/").status_code == 200
    match expected.status:
        case S.SUCCEEDED:
            assert shown(told, "Moved before it was sent") == labels
        case S.PENDING:
            asked = page(Approval.objects.get(operation=case.operation, status="requested"))
            assert shown(asked, "Asked again") == labels
            assert html.escape(lapse_sentence(expected.code)) in asked
        case _ if expected.code != "record_altered":
            assert "The approval no longer stood" in told


def played(case: Case, move: Move, expected: Expected, phase: str) -> None:
    if phase == "before the decision":
        move(case)
        if expected.pressed:
            with pytest.raises((Conflict, NotYours)) as told:
                case.world.decide(case.approval, case.reviewer)
            assert told.value.code == expected.pressed
            case.approval.refresh_from_db()
            assert case.approval.status == ("expired" if expected.pressed == "expired" else "requested")
            return
    case.world.decide(case.approval, case.reviewer)
    if phase == "after the decision":
        move(case)
    case.world.send(case.operation)
    case.approval.refresh_from_db()
    operation, approval = case.operation, case.approval
    assert (operation.status, operation.error_code) == (
        expected.status,
        expected.code if expected.status != S.SUCCEEDED and expected.status != S.PENDING else "",
    ) or operation.status == expected.status == S.PENDING, (operation.status, operation.error_code)
    match expected.status:
        case S.SUCCEEDED:
            assert len(case.world.sent(operation)) == 1
            assert (approval.status, approval.consumed_by) == ("approved", operation.id)
            assert {each["name"] for each in queries.moved(approval)} == expected.changes
        case S.PENDING:
            assert (approval.status, approval.closed_reason) == ("superseded", expected.code)
            assert approval.consumed_at is None
            (new,) = Approval.objects.filter(operation=operation, status="requested")
            shown = queries.proposal(new)["moved"]
            assert (shown["since"], shown["why"]) == (approval.public_id, expected.code)
            assert {each["name"] for each in shown["changes"]} == expected.changes
        case _:
            assert not Approval.objects.filter(operation=operation, status="requested").exists()
            if expected.code != "record_altered":
                assert (approval.status, approval.closed_reason) == ("revoked", expected.code)
    if approval.status in ("superseded", "revoked"):
        assert code_in_audit(approval) == expected.code


def code_in_audit(approval: Approval) -> str:
    """Why the yes stands no more, as whoever reads the audit log is told."""
    entry = AuditEntry.objects.get(verb=f"approval.{approval.status}", object_id=approval.public_id)
    place = Place("audit_auditentry", str(entry.id), "detail")
    return vault.unseal(place, entry.sealed_detail)["code"]


def test_time_that_ran_out_is_no_broken_ground_however_often_it_does(world, monkeypatch):
    case = asked(world, monkeypatch)
    for _ in range(4):
        approval = world.open_of(case.operation)
        assert approval.round == 0
        world.decide(approval, case.reviewer)
        world.move_clock(24 * 3_600 + 1)
        assert world.send(case.operation).status == S.PENDING
    world.decide(world.open_of(case.operation), case.reviewer)
    assert world.send(case.operation).status == S.SUCCEEDED
