"""A sender died and nobody came for a day, a week, a month: age turns nothing into failed, and each ends as it must."""

import pytest

from agentops.engine import settle as engine
from agentops.engine.control import end_overdue
from approvals.services import AUTHORITY
from operations.connectors.registry import CONNECTORS
from operations.dispatch import dispatch, loaded
from operations.models import Attempt, Operation
from operations.reconcile import carry_on, due
from operations.settlement import Says, settle
from operations.states import PersonsVerdict
from runs.models import AgentRun
from tests import factories
from tests.stage import operation

DAY = 24 * 3600
LEFT = (25 * 3600, 8 * DAY, 40 * DAY)  # for so long, all in all


@pytest.fixture
def dies(monkeypatch):
    """`dies(action, after)`: the sender of that action dies before, or after, the request has been carried out."""
    moments: dict[str, bool] = {}
    send = engine.send

    def sent(departure):
        call = departure.call
        if call.action not in moments:
            return send(departure)
        if moments[call.action]:
            CONNECTORS["stripe"].send(call, departure.request, lambda: None)
        return loaded(departure.operation_id)

    monkeypatch.setattr(engine, "send", sent)
    return lambda action, after: moments.update({action: after})


def left_executing(stage, action: str, **start) -> tuple[dict, Operation]:
    order = stage.order()
    run = stage.ask_refund(order, **start)
    stage.carry_on(run, lambda row: row.operations.filter(action=action, status="executing").exists())
    return order, operation(run, action)


def test_age_turns_nothing_into_failed_and_each_ends_as_the_provider_or_a_person_says(stage, dies):
    dies("refund.create", True)
    found = [left_executing(stage, "refund.create") for _ in LEFT]
    dies("refund.create", False)
    absent = [left_executing(stage, "refund.create") for _ in LEFT]
    stage.rest()
    calls, waited = stage.provider.books()["calls"], 0
    for place, seconds in enumerate(LEFT):
        stage.move_clock(seconds - waited)
        waited = seconds
        end_overdue()  # runs have deadlines; what they have sent has none
        still = [made.id for _, made in found[place:] + absent[place:]]
        assert set(Operation.objects.filter(pk__in=still).values_list("status", flat=True)) == {"executing"}
        assert set(still) <= set(due())
        order, there = found[place]
        there = carry_on(there.id, AUTHORITY, worker="test")
        assert (there.status, there.attempts) == ("succeeded", 1)
        assert [each["id"] for each in stage.refunds(order)] == [there.provider_ref]
        order, nowhere = absent[place]
        nowhere = carry_on(nowhere.id, AUTHORITY, worker="test")
        assert (nowhere.status, nowhere.error_code) == ("escalated", "absent_key_expired")
        assert nowhere.key_expires_at < nowhere.updated_at
        for _ in range(2):  # after its key has died a generation is never sent again
            carry_on(nowhere.id, AUTHORITY, worker="test")
        assert Attempt.objects.filter(operation=nowhere).count() == 1
        assert stage.refunds(order) == []
    assert stage.provider.books()["calls"] == calls
    overdue = AgentRun.objects.get(pk=found[2][1].run_id)
    assert (overdue.status, overdue.error_code) == ("failed", "deadline")
    assert (
        AgentRun.objects.get(pk=absent[2][1].run_id).status == "running"
    )  # it ends when a person has found out


def test_what_surely_had_no_effect_is_sent_under_the_next_key_once_the_first_has_died(ledger):
    order = ledger.order()
    ledger.provider.fault("rate_limited", times=1, door="payments")
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    assert (made.status, made.attempts) == ("approved", 1)
    ledger.move_clock(DAY + 3600)
    made = dispatch(made.id, AUTHORITY, worker="test")
    assert (made.status, made.attempts, made.generation) == ("succeeded", 2, 1)
    first, second = Attempt.objects.filter(operation=made).order_by("number")
    assert first.idempotency_key != second.idempotency_key == made.idempotency_key
    assert made.key_expires_at > made.updated_at
    assert len(ledger.refunds(order)) == 1


@pytest.mark.parametrize(
    "seconds", [DAY - 60, DAY + 3600]
)  # a minute before its end a key is no longer trusted
def test_send_again_that_waited_longer_than_its_key_lives_sends_nothing(ledger, seconds):
    order = ledger.order()
    ledger.provider.fault("drop_before_commit", times=1, door="payments")
    ledger.ask(ledger.run(), order)
    (made,) = ledger.operations(order)
    ledger.move_clock(60)
    factories.policy(ledger.tenant, "refund.create", [{"code": "no", "when": "true", "outcome": "deny"}])
    assert carry_on(made.id, AUTHORITY, worker="test").status == "escalated"
    factories.policy(ledger.tenant, "refund.create", factories.ALWAYS)
    says = Says(PersonsVerdict.SEND_AGAIN, "It never arrived.")
    settle(made.tenant_id, made.id, says, person=factories.settler(ledger.tenant), channel="cli")
    ledger.move_clock(seconds - 60)
    made = dispatch(made.id, AUTHORITY, worker="test")
    assert (made.status, made.error_code, made.in_doubt) == ("escalated", "absent_key_expired", True)
    assert Attempt.objects.filter(operation=made).count() == 1
    assert ledger.refunds(order) == []


def test_while_the_key_lives_the_same_bytes_go_out_again_however_late(stage, dies):
    dies("mail.send", False)
    left = [left_executing(stage, "mail.send", deadline_seconds=400 * DAY) for _ in LEFT]
    stage.rest()
    waited = 0
    for seconds, (_, made) in zip(LEFT, left, strict=True):
        stage.move_clock(seconds - waited)
        waited = seconds
        made = carry_on(made.id, AUTHORITY, worker="test")
        assert (made.status, made.attempts, made.generation) == ("succeeded", 2, 0)
        first, second = Attempt.objects.filter(operation=made).order_by("number")
        assert (first.request_digest, first.idempotency_key) == (
            second.request_digest,
            second.idempotency_key,
        )
        assert len([path for path in stage.mails() if path.stem == made.idempotency_key]) == 1
