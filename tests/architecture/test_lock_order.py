"""The order of locks of every service, as it really takes them: one order, so no two of them can wait for each other."""

import re
import threading

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from approvals.services import AUTHORITY, expire_due
from operations.dispatch import depart, loaded, send
from operations.reconcile import carry_on
from operations.settlement import Says, settle
from operations.states import PersonsVerdict
from tests import factories
from tests.stage import LARGE, SMALL

ORDER = [
    "runs_slot",
    "runs_conversation",
    "runs_agentrun",
    "operations_target",
    "operations_operation",
    "operations_hook",
    "approvals_approval",
    "operations_incident",
    "operations_settlement",
]
LOCKS = re.compile(r'UPDATE (?:ONLY )?"?(\w+)"?.* SET | FROM "(\w+)".* FOR NO KEY UPDATE', re.S)


@pytest.fixture
def taken(monkeypatch) -> set[tuple[str, ...]]:
    """The tables in the order in which each transaction of this process first locked a row of them."""
    found: set[tuple[str, ...]] = set()
    held = threading.local()
    execute = CursorWrapper.execute

    def executed(self, sql, params=None):
        result = execute(self, sql, params)
        match = LOCKS.search(str(sql))
        if match and self.db.in_atomic_block:
            tables = held.__dict__.setdefault("tables", [])
            table = match.group(1) or match.group(2)
            if table not in tables:
                tables.append(table)
        return result

    def ending(end):
        def ended(self):
            found.add(tuple(held.__dict__.pop("tables", [])))
            return end(self)

        return ended

    monkeypatch.setattr(CursorWrapper, "execute", executed)
    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", ending(BaseDatabaseWrapper._commit))
    monkeypatch.setattr(BaseDatabaseWrapper, "_rollback", ending(BaseDatabaseWrapper._rollback))
    return found


def play(stage) -> None:
    """Every service that moves something, on runs that also wait for each other's operations."""
    person = stage.reviewer()
    stage.carry_on(stage.ask_refund(stage.order(SMALL)))
    shared = stage.order(LARGE)
    runs = [stage.ask_refund(shared), stage.ask_refund(shared)]
    approval, _ = (stage.until_asked(run) for run in runs)
    stage.decide(approval, person)
    for run in runs:
        stage.carry_on(run)
    rejected, cancelled, expired, asked_again, lost = [
        stage.until_asked(stage.ask_refund(stage.order(LARGE))) for _ in range(5)
    ]
    stage.rest()
    stage.decide(rejected, person, "reject")
    cancel_run(stage.tenant.id, cancelled.operation.run_id, actor=SYSTEM, reason="x")
    stage.decide(lost, person)
    stage.decide(asked_again, person)
    departure = depart(loaded(lost.operation_id), AUTHORITY, worker="test")
    stage.provider.fault("commit_then_drop", times=1)
    send(departure)
    settler = factories.settler(stage.tenant)
    for verdict in (PersonsVerdict.KEEP_LOOKING, PersonsVerdict.HAPPENED):
        reference = stage.refunds({"id": lost.operation.target_name})[0]["id"]
        says = Says(verdict, "x", reference)
        settle(stage.tenant.id, lost.operation_id, says, person=settler, channel="cli")
    factories.policy(
        stage.tenant,
        "refund.create",
        [{"code": "two", "when": "true", "outcome": "require_approval", "required": 2}],
    )
    carry_on(asked_again.operation_id, AUTHORITY, worker="test")
    stage.move_clock(24 * 3600 + 1)
    assert expire_due() == 2
    expired.refresh_from_db()
    assert expired.status == "expired"


def test_every_service_takes_its_locks_in_the_one_order(stage, taken):
    play(stage)
    orders = {order for order in taken if len(order) > 1}
    unknown = {table for order in orders for table in order if table not in ORDER}
    assert not unknown, unknown
    wrong = [order for order in orders if sorted(order, key=ORDER.index) != list(order)]
    assert wrong == []
    assert any("approvals_approval" in order for order in orders)
    assert any("operations_target" in order for order in orders)
