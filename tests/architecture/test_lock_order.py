"""The order of locks of every service, as it really takes them: one order, so no two of them can wait for each other."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import transaction
from pydantic import BaseModel

from agentops.audit.entries import SYSTEM
from agentops.engine import aftermath
from agentops.engine.control import cancel_run
from agentops.engine.newest import start_newest
from agentops.engine.outlook import outlook
from agentops.engine.pause import pause_run, resume_run
from agentops.engine.rerun import rerun
from agentops.engine.retry import retry_run
from agentops.engine.tasks import tell_reviewers
from agentops.kernel.clock import now
from agentops.kernel.ids import show, uuid7
from agentops.sdk import Agent, Call, Reply, tool
from agentops.sdk.agents import agent, separate_registry
from approvals.bulk import Named
from approvals.models import Approval
from approvals.services import AUTHORITY, decide_each, expire_due, extend, lower, revoke
from operations import sweep
from operations.connections import remove_credential, set_credential
from operations.connectors.base import Answer
from operations.connectors.registry import CONNECTORS
from operations.dispatch import call_of, depart, loaded, send
from operations.models import Connection, Operation
from operations.moves import lock
from operations.outcomes import escalate
from operations.reconcile import carry_on
from operations.settlement import Says, settle
from operations.states import PersonsVerdict, Verdict
from runs import budgets
from runs.models import AgentRun
from runs.services import Start
from tests import factories
from tests.locks import LockOrders
from tests.provider import STRIPE_KEY
from tests.stage import LARGE, SMALL


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
        Operation.objects.filter(pk=lost.operation_id).update(look_until=None)
        with transaction.atomic():
            escalate(lock(lost.operation_id), Answer(Verdict.UNKNOWN), "look_ups_say_nothing")
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
    seen = outlook(AgentRun.objects.get(pk=talk[0].pk))
    rerun(stage.tenant.id, talk[0].id, digest=seen.digest, actor=SYSTEM, reason="x")
    for run_id in aftermath.due():
        aftermath.tell(run_id)
    assert AgentRun.objects.get(pk=talk[1].pk).ready_at
    asked = [stage.ask_refund(stage.order(LARGE), concurrency_key="k", concurrency_limit=2) for _ in range(2)]
    for run in asked:
        stage.until_asked(run)
    stage.rest()
    newest = Start(input="x", concurrency_key="k")
    won = start_newest(client, agent("support-agent"), newest, trace_id="0" * 31 + "1")
    assert {each.run.pk for each in won.replaced} == {run.pk for run in asked}


def play_sweep(stage) -> None:
    """The provider lists what people were still asked about, and what no row here accounts for; a message is kept too."""
    waiting = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    connector, call = CONNECTORS["stripe"], call_of(loaded(waiting.operation_id))
    other = stage.order(SMALL)
    lost = replace(
        call,
        operation_id=show("op", uuid7()),
        idempotency_key="lost",
        target=other["id"],
        params={**call.params, "charge": other["charge"], "amount_minor": SMALL},
        amount_minor=SMALL,
    )
    for each in (call, lost):
        connector.send(each, connector.build(each), lambda: None)
    account = Connection.objects.select_related("tenant").get(tenant=stage.tenant, connector="stripe")
    stage.move_clock(60)
    assert sweep.carry_on(account, AUTHORITY).adopted == 2
    waiting.refresh_from_db()
    assert waiting.status == "withdrawn"
    remove_credential(account, SYSTEM)
    set_credential(account, STRIPE_KEY, SYSTEM)


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


def test_families_and_conversations_take_their_locks_in_the_one_order(stage, starter, lock_orders):
    play_families(stage)
    assert lock_orders.faults == []
    assert any(order[:2] == ("runs_slot", "runs_agentrun") for order in lock_orders.orders)
    assert any(order[:2] == ("runs_conversation", "runs_agentrun") for order in lock_orders.orders)


def test_the_sweep_takes_its_locks_in_the_one_order(stage, lock_orders, monkeypatch):
    monkeypatch.setattr(sweep, "OVERLAP", timedelta(0))  # the provider's books are one for all tests
    time.sleep(1.02 - time.time() % 1)
    Connection.objects.update(created_at=now())
    play_sweep(stage)
    assert lock_orders.faults == []
    way = ("operations_operation", "approvals_approval", "operations_incident")
    assert any(tuple(table for table in order if table in way) == way for order in lock_orders.orders)


def test_every_service_takes_its_locks_in_the_one_order(stage, lock_orders):
    play(stage)
    assert lock_orders.faults == []
    seen = {table for order in lock_orders.orders for table in order}
    assert {"approvals_approval", "operations_target", "operations_incident"} <= seen
    assert any(order[1:3] == ("operations_target", "operations_operation") for order in lock_orders.orders)


def test_what_people_do_with_approvals_takes_its_locks_in_the_one_order(world, lock_orders):
    """Each under a day's limit, so that the row of a limit is the last that is locked."""
    person = factories.person(world.tenant, each_minor=40_000)
    person.review_limits.update(day_minor=10**6)
    given = {"reviewer": person, "channel": "admin"}
    lowered, revoked, sent, extended = (world.ask() for _ in range(4))
    less = {"changes": {"amount_minor": 100}, "reason": "x", "proposal_digest": lowered.proposal_digest}
    again = lower(world.tenant.id, lowered.id, **less, **given)
    named = [Named(each.id, each.proposal_digest) for each in (again, revoked, sent)]
    answers = decide_each(world.tenant.id, named, verdict="approve", reason="", **given)
    assert [each.status for each in answers] == ["approved"] * 3
    revoke(world.tenant.id, revoked.id, reason="x", **given)
    extend(world.tenant.id, extended.id, **given)
    world.send(sent.operation)
    world.connector.facts["status"] = "frozen"
    world.send(again.operation)
    tell_reviewers()
    assert lock_orders.faults == []
    decided = (
        "runs_agentrun",
        "operations_target",
        "operations_operation",
        "approvals_approval",
        "approvals_reviewlimit",
    )
    assert any(
        [table for table in order if table in decided] == list(decided) for order in lock_orders.orders
    )


def test_an_order_that_closes_a_circle_is_a_fault(stage, lock_orders):
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    with transaction.atomic():
        list(Approval.objects.select_for_update(no_key=True).filter(pk=approval.pk))
        list(AgentRun.objects.select_for_update(no_key=True).filter(pk=approval.operation.run_id))
    (fault,) = lock_orders.faults
    assert fault.endswith("here: approvals_approval → runs_agentrun")
    lock_orders.faults.clear()
    own = LockOrders()
    own.note(("counters", "budgets"))
    own.note(("approvals_approval", "counters"))
    assert own.faults == []
    own.note(("budgets", "runs_agentrun"))
    assert len(own.faults) == 1
