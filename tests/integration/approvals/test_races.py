"""Two who act at the same moment on one proposal, over connections of their own: one outcome, and never a wrong effect."""

import threading
from contextlib import closing
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import Client

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from agentops.kernel.problems import Conflict
from approvals.models import Approval, Decision
from approvals.services import expire_due, extend, lower, revoke
from operations.models import Operation
from operations.states import OperationStatus
from tests import factories, proposals
from tests.stage import together

S = OperationStatus
ROUNDS = 2
DAY = 24 * 3600


class Race:
    """Whatever two of these do at once leaves rows that agree with each other and with the books."""

    def __init__(self, world) -> None:
        self.world = world
        self.one, self.two = (factories.person(world.tenant, each_minor=40_000) for _ in range(2))

    def approve(self, approval):
        return lambda: self.world.decide(approval, self.one)

    def reject(self, approval):
        return lambda: self.world.decide(approval, self.two, "reject")

    def expire(self, approval):
        return expire_due

    def cancel(self, approval):
        run = Operation.objects.get(pk=approval.operation_id).run_id
        return lambda: cancel_run(self.world.tenant.id, run, actor=SYSTEM, reason="Called off.")

    def revoke(self, approval):
        given = {"reviewer": self.two, "reason": "Wait.", "channel": "admin"}
        return lambda: revoke(self.world.tenant.id, approval.id, **given)

    def extend(self, approval):
        return lambda: extend(self.world.tenant.id, approval.id, reviewer=self.two, channel="admin")

    def lower(self, approval):
        given = {"reviewer": self.two, "reason": "Less.", "channel": "admin"}
        digest = approval.proposal_digest
        changes = {"amount_minor": 100}
        return lambda: lower(
            self.world.tenant.id, approval.id, changes=changes, proposal_digest=digest, **given
        )

    def lose_right(self, approval):
        return lambda: self.one.groups.clear()

    def send_on_broken_ground(self, approval):
        self.world.connector.facts["status"] = "frozen"
        return self.send(approval)

    def send(self, approval):
        return lambda: self.world.send(Operation.objects.get(pk=approval.operation_id))


# Who is first decides; which of these pairs of ends there may be: the approval's and the operation's.
OPEN = {
    ("approve", "reject"): {("approved", S.APPROVED), ("rejected", S.REJECTED)},
    ("approve", "cancel"): {("approved", S.CANCELLED), ("withdrawn", S.CANCELLED)},
    ("approve", "lower"): {("approved", S.APPROVED), ("superseded", S.PENDING)},
    ("approve", "lose_right"): {("approved", S.APPROVED), ("requested", S.PENDING)},
    ("reject", "lower"): {("rejected", S.REJECTED), ("superseded", S.PENDING)},
    ("lower", "cancel"): {("superseded", S.CANCELLED), ("withdrawn", S.CANCELLED)},
}
LATE = {
    ("approve", "expire"): {("expired", S.EXPIRED)},
    ("extend", "expire"): {("expired", S.EXPIRED)},
}
ALLOWED = {
    ("send", "revoke"): {("approved", S.SUCCEEDED), ("revoked", S.PENDING)},
    ("send", "cancel"): {("approved", S.SUCCEEDED), ("approved", S.CANCELLED)},
    ("revoke", "cancel"): {("approved", S.CANCELLED), ("revoked", S.CANCELLED)},
    ("revoke", "revoke"): {("revoked", S.PENDING)},
    ("send_on_broken_ground", "revoke"): {("superseded", S.PENDING), ("revoked", S.PENDING)},
    ("send_on_broken_ground", "send_on_broken_ground"): {("superseded", S.PENDING)},
    ("send_on_broken_ground", "cancel"): {("superseded", S.CANCELLED), ("approved", S.CANCELLED)},
    ("send", "send"): {("approved", S.SUCCEEDED)},
    ("send", "lose_right"): {("approved", S.SUCCEEDED), ("superseded", S.PENDING)},
}


def test_of_two_at_once_one_wins_and_what_is_sent_was_allowed(world):
    for pairs, before in ((OPEN, "open"), (LATE, "late"), (ALLOWED, "allowed")):
        for (first, second), ends in pairs.items():
            for _ in range(ROUNDS):
                world.connector.reset()
                race = Race(world)
                approval = world.ask()
                if before == "allowed":
                    world.decide(approval, race.one)
                if before == "late":
                    world.move_clock(DAY + 1)
                outcomes = together(getattr(race, first)(approval), getattr(race, second)(approval))
                approval.refresh_from_db()
                operation = approval.operation
                operation.refresh_from_db()
                seen = (approval.status, operation.status)
                assert seen in ends, (first, second, seen, outcomes)
                faults = [each for each in outcomes if isinstance(each, Exception)]
                assert all(hasattr(fault, "code") for fault in faults), (first, second, faults)
                consistent(world, operation)


def consistent(world, operation) -> None:
    sent, approvals = world.sent(operation), Approval.objects.filter(operation=operation)
    assert len(sent) == (1 if operation.status == S.SUCCEEDED else 0)
    assert approvals.filter(status="requested").count() == (1 if operation.status == S.PENDING else 0)
    assert approvals.filter(consumed_at__isnull=False).count() == len(sent)
    if sent:
        (used,) = approvals.filter(consumed_at__isnull=False)
        assert used.decisions.filter(verdict="approve").count() >= used.required


@pytest.mark.case("D-2")
def test_of_twenty_five_answers_at_once_one_wins_and_the_others_are_told_which(world):
    people = [factories.person(world.tenant, each_minor=40_000) for _ in range(25)]
    verdicts = ["approve"] * 20 + ["reject"] * 5
    approval = world.ask()
    outcomes = together(
        *(lambda p=p, v=v: world.decide(approval, p, v) for p, v in zip(people, verdicts, strict=True))
    )
    lost = [each for each in outcomes if not isinstance(each, Approval)]
    (decision,) = Decision.objects.all()
    assert len(lost) == 24
    assert all(isinstance(each, Conflict) and each.code == "already_decided" for each in lost), lost
    assert {each.extra["decided_by"] for each in lost} == {decision.reviewer.get_full_name()}
    assert {each.extra["verdict"] for each in lost} == {decision.verdict}
    assert all(each.extra["decided_at"] for each in lost)
    world.send(approval.operation)
    assert len(world.sent(approval.operation)) == (1 if decision.verdict == "approve" else 0)


@pytest.mark.case("D-5")
def test_two_browsers_at_once_on_a_slow_database_make_one_decision_and_no_error_page(world):
    people = [factories.person(world.tenant, each_minor=40_000) for _ in range(2)]
    approval = world.ask()
    page = f"/admin/approvals/{approval.public_id}/"
    clients = [Client() for _ in people]
    for client, person in zip(clients, people, strict=True):
        client.force_login(person)
    forms = [
        {"verdict": "approve", "form_id": uuid4().hex, **proposals.form_of(client, approval)}
        for client in clients
    ]
    held, go = threading.Event(), threading.Event()

    def slow_database() -> None:
        with closing(connection), transaction.atomic():
            list(Operation.objects.select_for_update(no_key=True).filter(pk=approval.operation_id))
            held.set()
            go.wait(10)

    holder = threading.Thread(target=slow_database)
    holder.start()
    held.wait(10)
    threading.Timer(0.6, go.set).start()
    answers = together(*(lambda c=c, f=f: c.post(page, f) for c, f in zip(clients, forms, strict=True)))
    holder.join(10)
    assert sorted(answer.status_code for answer in answers) == [200, 302]
    winner = 0 if answers[0].status_code == 302 else 1
    told = answers[1 - winner].content.decode()
    name = people[winner].get_full_name()
    assert f"Approved by {name}" in told
    assert "Your decision was not recorded" in told
    back = clients[winner].post(page, forms[winner], follow=True)  # Back, and the same form once more
    assert "sending it again changed nothing" in back.content.decode()
    assert Decision.objects.count() == 1
    world.send(approval.operation)
    assert len(world.sent(approval.operation)) == 1
