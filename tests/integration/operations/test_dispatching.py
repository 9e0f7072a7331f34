"""Dispatch: of several who come at once one sends; what changed between the look and the claim is seen under the lock."""

import threading
import time

import pytest
from django.db import connection

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run
from agentops.tenancy.models import Tenant
from approvals import asking
from approvals.services import AUTHORITY
from operations.connectors.registry import CONNECTORS
from operations.dispatch import dispatch, loaded
from operations.models import Attempt, Connection, Incident
from operations.states import OperationStatus
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, operation, together, types

STRIPE = CONNECTORS["stripe"]


@pytest.fixture
def order(stage):
    return stage.order(LARGE)


@pytest.fixture
def allowed(stage, order):
    """A refund that a person allowed, and nobody at work."""
    approval = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    return loaded(approval.operation_id)


def elsewhere(work) -> None:
    """In another session, to its end."""
    thread = threading.Thread(target=lambda: (work(), connection.close()))
    thread.start()
    thread.join()


def before_the_claim(monkeypatch, work) -> None:
    """`work` happens when everything has been looked at and nothing is claimed yet."""
    build, once = STRIPE.build, []

    def built(call):
        request = build(call)
        if not once:
            once.append(1)
            work()
        return request

    monkeypatch.setattr(STRIPE, "build", built)


def test_of_two_workers_that_come_at_once_one_sends(stage, order, allowed, monkeypatch):
    both, build, before = threading.Barrier(2), STRIPE.build, stage.provider.books()["calls"]

    def built(call):
        request = build(call)
        if threading.current_thread().name.startswith("Thread"):
            both.wait(10)
        return request

    monkeypatch.setattr(STRIPE, "build", built)
    together(*[lambda: dispatch(allowed.id, AUTHORITY, worker="test")] * 2)
    assert stage.provider.books()["calls"] == before + 1
    assert Attempt.objects.filter(operation=allowed).count() == 1
    assert len(stage.refunds(order)) == 1


def test_a_cancel_between_the_look_and_the_claim_is_seen(stage, order, allowed, monkeypatch):
    def cancel():
        elsewhere(lambda: cancel_run(stage.tenant.id, allowed.run_id, actor=SYSTEM, reason="x"))

    before_the_claim(monkeypatch, cancel)
    assert dispatch(allowed.id, AUTHORITY, worker="test").status == OperationStatus.CANCELLED
    assert stage.refunds(order) == []
    assert types(allowed.run)[-1] == "run.cancelled"


def test_a_suspension_between_the_look_and_the_claim_is_seen(stage, order, allowed, monkeypatch):
    before_the_claim(monkeypatch, lambda: Tenant.objects.update(state=Tenant.State.SUSPENDED))
    assert dispatch(allowed.id, AUTHORITY, worker="test").status == OperationStatus.CANCELLED
    assert stage.refunds(order) == []


def test_a_connection_that_is_disabled_between_the_yes_and_the_sending_holds_it_back(stage, order, allowed):
    Connection.objects.update(enabled=False)
    assert dispatch(allowed.id, AUTHORITY, worker="test").status == OperationStatus.APPROVED
    incident = Incident.objects.get()
    assert (incident.kind, incident.about) == ("connection_disabled", str(allowed.connection_id))
    assert AgentRun.objects.get(pk=allowed.run_id).blocked_on == ["credential", "operation"]
    Connection.objects.update(enabled=True)
    stage.as_time_passes(allowed.run)
    assert len(stage.refunds(order)) == 1
    incident.refresh_from_db()
    assert incident.closed_at is not None


def test_a_connection_that_is_disabled_between_the_look_and_the_claim_is_seen(
    stage, order, allowed, monkeypatch
):
    with monkeypatch.context() as meanwhile:
        before_the_claim(meanwhile, lambda: Connection.objects.update(enabled=False))
        assert dispatch(allowed.id, AUTHORITY, worker="test").status == OperationStatus.APPROVED
    assert loaded(allowed.id).attempts == 0
    assert stage.refunds(order) == []


def slowly(monkeypatch) -> None:
    """Whoever has counted what is left takes its time before acting on it."""
    count = asking.remaining_minor

    def counted(*args, **more):
        left = count(*args, **more)
        time.sleep(0.4)
        return left

    monkeypatch.setattr(asking, "remaining_minor", counted)


def test_two_approvals_at_once_are_counted_one_after_the_other(stage, order, monkeypatch):
    texts = [f"Refund {amount} EUR of order {order['id']}, damaged." for amount in (80, 90)]
    approvals = [stage.until_asked(stage.start(text)) for text in texts]
    stage.rest()
    people = [stage.reviewer(), stage.reviewer()]
    slowly(monkeypatch)
    outcomes = together(*(lambda a=a, p=p: stage.decide(a, p) for a, p in zip(approvals, people)))
    assert sorted(type(each).__name__ for each in outcomes) == ["Approval", "Conflict"]


def test_two_allowed_proposals_at_once_are_counted_one_after_the_other(stage, order, monkeypatch):
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    texts = [f"Refund {amount} EUR of order {order['id']}, damaged." for amount in (80, 90)]
    slowly(monkeypatch)
    runs = [stage.start(text) for text in texts]
    for run in runs:
        stage.carry_on(run, lambda row: row.is_terminal or row.status == "waiting_for_approval")
    assert sorted(operation(run).status for run in runs) in (
        ["rejected", "succeeded"],
        ["pending", "succeeded"],
    )
    assert sum(each["amount"] for each in stage.refunds(order)) <= LARGE
