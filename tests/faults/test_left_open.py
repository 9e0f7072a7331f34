"""Public reports of things that were left open: an outage that buried people, a step that ran for ever, a wait that lost its
race, a state that ran ahead of what it needs, a retry without an end."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from agentops import llm
from agentops.audit.entries import SYSTEM, Actor
from agentops.audit.models import AuditEntry
from agentops.engine import agent_loop, ledger
from agentops.engine.control import cancel_run
from agentops.kernel.problems import Conflict
from agentops.sdk import Retryable
from agentops.tenancy.models import Membership
from approvals import queries as approval_queries
from approvals.services import AUTHORITY
from operations.connections import remove_credential
from operations.connectors.registry import CONNECTORS
from operations.dispatch import depart, dispatch, loaded
from operations.models import Connection, Finding, Incident, Operation
from operations.reconcile import carry_on, due
from runs.models import AgentRun, Step
from tests import factories, proposals
from tests.integration.engine.conftest import test_agent
from tests.provider import STRIPE_KEY
from tests.stage import LARGE, SMALL, operation, sql, types

__all__ = ["test_agent"]
EMIL = Actor("user:0", "admin")
LIVING_UNDER_THE_DEAD = """
WITH dead AS (SELECT id FROM runs_agentrun WHERE status IN ('completed', 'failed', 'cancelled'))
SELECT 'step', key FROM runs_step JOIN dead ON id = run_id WHERE status = 'started'
UNION ALL SELECT 'operation', o.id::text FROM operations_operation o JOIN dead ON dead.id = run_id
  WHERE o.status IN ('pending', 'approved', 'executing', 'unknown', 'escalated')
UNION ALL SELECT 'approval', a.id::text FROM approvals_approval a JOIN operations_operation o ON o.id = operation_id
  JOIN dead ON dead.id = o.run_id WHERE a.status = 'requested'
UNION ALL SELECT 'child', r.id::text FROM runs_agentrun r JOIN dead ON dead.id = parent_id WHERE r.finished_at IS NULL
UNION ALL SELECT 'lease', r.id::text FROM runs_agentrun r JOIN dead USING (id) WHERE lease_owner IS NOT NULL
"""


def living_under_the_dead():
    with connection.cursor() as cursor:
        cursor.execute(LIVING_UNDER_THE_DEAD)
        return cursor.fetchall()


@pytest.mark.case("B-6")
def test_an_outage_is_one_incident_and_only_what_is_ambiguous_afterwards_reaches_people(stage, settings):
    """The report's forty rows, two hours and three ambiguous ones; a page for the queue is of a later order."""
    settings.AGENTOPS_SEND_SECONDS = 1
    orders = [stage.order(SMALL) for _ in range(40)]
    made = [
        proposals.refund(
            factories.run(stage.tenant), order=order["id"], charge=order["charge"], amount_minor=SMALL
        )
        for order in orders
    ]
    for fault, some in (("commit_then_drop", made[:37]), ("drop_before_commit", made[37:])):
        stage.provider.fault(fault, door="payments")
        for each in some:
            assert dispatch(each.id, AUTHORITY, worker="test").status == "unknown"
    lost = [each.id for each in made[37:]]
    sql(  # the keys of these three have almost run out
        "UPDATE operations_operation SET key_expires_at = agentops_now() + interval '2 hours' WHERE id = ANY(%s)",
        lost,
    )
    stage.provider.fault("unreachable")
    for _ in range(2):
        stage.move_clock(3600)
        for operation_id in due(100):
            carry_on(operation_id, AUTHORITY, worker="test")
    assert Operation.objects.filter(status="unknown").count() == 40
    assert [each.kind for each in Incident.objects.all()] == ["provider_unreachable"]
    assert Finding.objects.filter(verdict="unreachable").count() >= 40
    stage.provider.fault("ok")
    for _ in range(2):
        stage.move_clock(600)
        for operation_id in due(100):
            carry_on(operation_id, AUTHORITY, worker="test")
    assert Operation.objects.filter(action="refund.create", status="succeeded").count() == 37
    asked = Operation.objects.filter(status="escalated")
    assert {each.id for each in asked} == set(lost)
    assert {each.error_code for each in asked} == {"absent_key_expired"}
    assert all(Finding.objects.filter(operation=each, source="look_up").count() >= 3 for each in asked)
    left = Incident.objects.filter(closed_at=None)
    assert {(each.kind, each.about) for each in left} == {
        ("outcome_unknown", each.public_id) for each in asked
    }
    refunded = [refund["order"] for refund in stage.provider.books()["refunds"]]
    assert sum(order["id"] in refunded for order in orders) == 37


@pytest.mark.case("H-5")
def test_a_run_that_is_cancelled_as_its_worker_dies_leaves_nothing_alive_under_it(stage, test_agent):
    stage.provider.fault("ok")
    order = stage.order(LARGE)
    approval = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="dies")
    run = approval.operation.run
    Step.objects.create(  # a tool that is not safe to repeat, begun by the worker that dies now
        run_id=run.id, key="turn-9/call-0", tenant_id=run.tenant_id, kind="tool", name="odd", status="started"
    )
    CONNECTORS["stripe"].send(departure.call, departure.request, lambda: None)  # its answer dies with it
    receipt = cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="Called off.")
    assert [effect.outcome for effect in receipt.effects] == ["cannot_be_stopped"]
    step = Step.objects.get(run_id=run.id, key="turn-9/call-0")
    assert (step.status, step.error_class) == ("interrupted", "run_cancelled")
    assert step.ended_at is not None
    stage.move_clock(61)
    run = stage.carry_on(run)
    assert (run.status, operation(run).status, len(stage.refunds(order))) == ("cancelled", "succeeded", 1)
    assert "operation.unknown" in types(run)
    assert types(run)[-1] == "run.cancelled"
    assert living_under_the_dead() == []


@pytest.mark.case("H-9")
def test_a_question_that_lost_its_race_is_withdrawn_from_every_inbox_and_a_late_answer_is_told(stage):
    """Approval, withdrawal or a day: the withdrawal comes first. That a customer withdraws in a chat is of a later order."""
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval, person = stage.until_asked(run), stage.reviewer()
    waiting = approval_queries.visible(person).filter(status="requested")
    assert waiting.count() == 1
    receipt = cancel_run(
        stage.tenant.id, run.id, actor=Actor(run.actor, "rest"), reason="I keep it after all."
    )
    assert receipt.run.status == "cancelled"
    assert waiting.count() == 0
    approval.refresh_from_db()
    assert approval.status == "withdrawn"
    with pytest.raises(Conflict, match="withdrawn") as late:
        stage.decide(approval, person)
    assert late.value.code == "already_decided"
    stage.move_clock(24 * 3600 + 1)  # the third wait has nothing left to end either
    assert stage.carry_on(run).status == "cancelled"
    assert types(run)[-1] == "run.cancelled"
    assert (living_under_the_dead(), stage.refunds(order)) == ([], [])


@pytest.mark.case("I-5")
def test_an_approval_given_while_the_credential_is_gone_waits_for_it_and_then_goes_on(stage, monkeypatch):
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    account = Connection.objects.get(tenant=stage.tenant, connector="stripe")
    remove_credential(account, EMIL)
    stage.decide(approval, stage.reviewer())
    run = stage.carry_on(run, lambda row: "credential" in row.blocked_on)
    approval.refresh_from_db()
    made = operation(run)
    assert (run.status, made.status, made.attempts, approval.status) == ("running", "approved", 0, "approved")
    assert approval.consumed_at is None
    assert [each.kind for each in Incident.objects.filter(closed_at=None)] == ["credential_missing"]
    told = restored(stage, monkeypatch)  # the one click
    assert f"{made.public_id}  approved    refund.create on order:{order['id']}  goes on now" in told
    assert STRIPE_KEY not in told
    assert AuditEntry.objects.filter(verb="connection.credential_set", channel="cli", security=True).exists()
    run = stage.carry_on(run)
    assert (run.status, operation(run).status, len(stage.refunds(order))) == ("completed", "succeeded", 1)
    assert not Incident.objects.filter(closed_at=None).exists()


def restored(stage, monkeypatch) -> str:
    factories.person(stage.tenant, Membership.Role.ENGINEER, name="emil", each_minor=None)
    command = ("connection", "restore", "stripe", "--tenant", stage.tenant.slug, "--as", "emil")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(CommandError, match="nothing was changed"):
        call_command(*command)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{STRIPE_KEY}\n"))
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def _fails_in_the_tool(stage, monkeypatch, agent):
    def work(ctx):
        raise Retryable("The shop is closed.", retry_after_seconds=0.01)

    return agent(work, calls=50, same=True)


def _fails_in_the_model_call(stage, monkeypatch, agent):
    async def busy(*args, **more):
        raise llm.ModelRetryable("Busy.", code="busy", retry_after_seconds=0.01)

    monkeypatch.setattr(agent_loop.llm, "turn", busy)
    return agent(lambda ctx: 1)


def _fails_in_the_journal(stage, monkeypatch, agent):
    import psycopg

    def refuse(*args):
        raise psycopg.OperationalError("never")

    monkeypatch.setattr(ledger, "_columns", refuse)
    return agent(lambda ctx: 1)


def _fails_as_the_worker_starts(stage, monkeypatch, agent):
    def dies(*args):
        raise MemoryError

    monkeypatch.setattr(ledger.loading, "live", dies)
    return agent(lambda ctx: 1)


def _fails_in_the_result(stage, monkeypatch, agent):
    return agent(lambda ctx: ctx.step("thing", lambda step: object()), calls=50, same=True)


PATHS = {
    _fails_in_the_tool: ("operator", "repeated_call"),
    _fails_in_the_model_call: ("failed", "model_busy"),
    _fails_in_the_journal: ("failed", "worker_crash_loop"),
    _fails_as_the_worker_starts: ("failed", "worker_crash_loop"),
    _fails_in_the_result: ("operator", "repeated_call"),
}


@pytest.mark.case("I-6")
def test_no_path_of_failure_is_endless_and_each_says_what_failed(stage, test_agent, monkeypatch):
    for path, (kind, code) in PATHS.items():
        with monkeypatch.context() as patched:
            run = stage.start("x", path(stage, patched, test_agent))
            run = stage.as_time_passes(
                run, lambda row: row.is_terminal or "operator" in row.blocked_on, speed=600
            )
            stage.rest()
        found = ("operator" if "operator" in run.blocked_on else run.status, run.error_code)
        assert found == (kind, code), path.__name__
        cancel = None if run.is_terminal else cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="x")
        assert cancel is None or cancel.run.is_terminal
    assert AgentRun.objects.filter(finished_at=None).count() == 0
    assert living_under_the_dead() == []
