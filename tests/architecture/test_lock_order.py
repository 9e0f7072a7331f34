"""The order of locks of every service, as it really takes them: one order, so no two of them can wait for each other."""

import re
import threading

import pytest
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from pydantic import BaseModel

from agentops.audit.entries import SYSTEM
from agentops.engine import aftermath
from agentops.engine.control import cancel_run
from agentops.engine.pause import pause_run, resume_run
from agentops.engine.retry import retry_run
from agentops.sdk import Agent, Call, Reply, tool
from agentops.sdk.agents import separate_registry
from approvals.services import AUTHORITY, expire_due
from operations.dispatch import depart, loaded, send
from operations.reconcile import carry_on
from operations.settlement import Says, settle
from operations.states import PersonsVerdict
from runs import budgets
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, SMALL

ORDER = [
    "runs_slot",
    "runs_conversation",
    "runs_agentrun",
    "runs_step",
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
    control(stage, cancelled.operation.run_id)
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


def control(stage, run_id) -> None:
    """What people do to a run that waits for a decision: it ends cancelled, and is carried on by another."""
    for verb in (pause_run, resume_run, cancel_run, retry_run):
        verb(stage.tenant.id, run_id, actor=SYSTEM, reason="x")


def play_families(stage) -> None:
    """A child that asks a person, its parent's end, slices of the tenant's budget, a follow-up that waits."""
    factories.policy(stage.tenant, "note.add", factories.ASK)
    stage.tenant.budget_microusd = 1_000_000
    stage.tenant.save()
    parent = stage.start("x", "starter")
    stage.carry_on(parent, lambda row: row.blocked_on == ["child"])
    child = stage.until_asked(parent.children.get()).operation.run
    stage.rest()
    for run in (child, parent):
        with transaction.atomic():
            assert budgets.take_slice(budgets.lineage(run), 1_000)
    cancel_run(stage.tenant.id, parent.id, actor=SYSTEM, reason="x")
    client = factories.principal(stage.tenant)
    talk = [
        factories.run(client, f"Add a note: {n}", name="assistant", conversation_id="c") for n in range(2)
    ]
    cancel_run(stage.tenant.id, talk[0].id, actor=SYSTEM, reason="x")
    for run_id in aftermath.due():
        aftermath.tell(run_id)
    assert AgentRun.objects.get(pk=talk[1].pk).ready_at


@pytest.fixture
def starter():
    class Said(BaseModel):
        text: str

    @tool(repeatable=True)
    def begin(ctx) -> Said:
        """Start another."""
        return Said(text=ctx.run("assistant", "Add a note: from a child").text)

    with separate_registry():
        yield Agent(
            "starter", instructions="x", tools=[begin], offline=lambda told: Reply("", (Call("begin", {}),))
        )


def test_families_and_conversations_take_their_locks_in_the_one_order(stage, starter, taken):
    play_families(stage)
    assert_ordered(taken)
    assert any(order[:2] == ("runs_slot", "runs_agentrun") for order in taken)
    assert any(order[:2] == ("runs_conversation", "runs_agentrun") for order in taken)


def assert_ordered(taken: set[tuple[str, ...]]) -> None:
    orders = {order for order in taken if len(order) > 1}
    unknown = {table for order in orders for table in order if table not in ORDER}
    assert not unknown, unknown
    assert [order for order in orders if sorted(order, key=ORDER.index) != list(order)] == []


def test_every_service_takes_its_locks_in_the_one_order(stage, taken):
    play(stage)
    assert_ordered(taken)
    orders = {order for order in taken if len(order) > 1}
    assert any("approvals_approval" in order for order in orders)
    assert any("operations_target" in order for order in orders)
