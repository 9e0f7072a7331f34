"""From the other side: what the provider lists is matched with our operations; a lost one is adopted and never sent."""

import time
from datetime import timedelta
from io import StringIO

import pytest
import stripe
from django.core.management import call_command
from django.db import IntegrityError, transaction

from approvals.services import AUTHORITY
from operations import sweep
from operations.connectors.registry import CONNECTORS
from operations.dispatch import depart, dispatch, loaded
from operations.models import Connection, Incident, Operation, Sweep, Target, Unmatched
from operations.reconcile import carry_on
from operations.targets import remaining_minor
from runs.models import AgentRun
from tests import factories
from tests.provider import STRIPE_KEY
from tests.stage import LARGE, SMALL, answer, operation, sql, story, types

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _a_second_of_its_own(stage, monkeypatch):
    """The provider's books are one for all tests, and its list counts in seconds: begin after what others have done."""
    monkeypatch.setattr(sweep, "OVERLAP", timedelta(0))
    time.sleep(1.02 - time.time() % 1)
    Connection.objects.update(created_at=sweep.now())


@pytest.fixture
def payments(stage) -> Connection:
    return Connection.objects.select_related("tenant").get(connector="stripe")


def swept(connection: Connection) -> Sweep:
    done = sweep.carry_on(connection, AUTHORITY)
    assert done.finished_at is not None
    return done


def forget(made: Operation) -> None:
    """The rows of an operation and its run are lost, as after a restore of an older backup."""
    run = made.run_id
    sql("SET session_replication_role = replica")
    for table in (
        "operations_attempt",
        "operations_finding",
        "operations_interest",
        "approvals_policydecision",
    ):
        sql(f"DELETE FROM {table} WHERE operation_id = %s", made.id)
    sql("DELETE FROM operations_operation WHERE id = %s", made.id)
    for table in ("runs_step", "runs_runevent", "runs_inboxmessage"):
        sql(f"DELETE FROM {table} WHERE run_id = %s", run)
    sql("SET session_replication_role = DEFAULT")


def refund_by_hand(stage, order, amount: int) -> None:
    """Somebody at the provider's own desk."""
    client = stripe.StripeClient(
        STRIPE_KEY,
        base_addresses={"api": stage.provider.payments_url},
        http_client=stripe.RequestsClient(timeout=5),
    )
    client.v1.refunds.create({"charge": order["charge"], "amount": amount})


def _listed(stage, made: Operation) -> dict:
    client = stripe.StripeClient(STRIPE_KEY, base_addresses={"api": stage.provider.payments_url})
    return client.v1.refunds.retrieve(made.provider_ref).to_dict()


def test_ours_are_recognised_and_those_of_somebody_else_are_counted_into_their_target(stage, payments):
    order, before = stage.order(LARGE), stage.provider.books()["calls"]
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    run = stage.carry_on(stage.start(f"Refund 20 EUR of order {order['id']}, damaged."))
    made = operation(run)
    refund_by_hand(stage, order, 700)
    assert remaining_minor(made.target, but=made.target_id) == LARGE - 2_000
    stage.move_clock(60)
    done = swept(payments)
    target = Target.objects.get(pk=made.target_id)
    assert (target.foreign_minor, remaining_minor(target, but=target.id)) == (700, LARGE - 2_700)
    assert (done.ours, done.foreign, done.adopted) == (1, 1, 0)
    assert not Incident.objects.exists()
    assert stage.provider.books()["calls"] == before + 2


def test_ours_but_unknown_here_is_adopted_under_an_incident_and_never_sent(stage, payments):
    order = stage.order()
    lost = operation(stage.carry_on(stage.ask_refund(order)))
    stage.rest()
    forget(lost)
    (refund,) = stage.refunds(order)
    before = stage.provider.books()["calls"]
    stage.move_clock(60)
    assert swept(payments).adopted == 1
    made = loaded(lost.id)  # under its own name, so that traces and the provider's metadata lead to it
    assert (made.status, made.authority_kind, made.attempts) == ("succeeded", "adopted", 0)
    assert (made.provider_ref, made.amount_minor, made.target_name) == (refund["id"], SMALL, order["id"])
    incident = Incident.objects.get(kind="effect_adopted", about=made.public_id, closed_at=None)
    assert made.authority_id == incident.id
    assert remaining_minor(made.target, but=made.target_id) == 0
    stood_in = AgentRun.objects.get(pk=made.run_id)
    assert (stood_in.status, stood_in.error_code) == ("failed", "record_lost")
    assert types(stood_in)[-1] == "run.failed"
    for again in (carry_on, lambda each, authority, worker: dispatch(each, authority, worker=worker)):
        again(made.id, AUTHORITY, worker="test")
    stage.move_clock(DAY + 60)
    assert swept(payments).adopted == 0
    assert stage.provider.books()["calls"] == before
    assert Operation.objects.filter(action="refund.create").count() == 1
    with pytest.raises(IntegrityError, match="operation_adopted_is_never_sent"), transaction.atomic():
        Operation.objects.filter(pk=made.pk).update(attempts=1)


def test_a_row_that_says_it_had_no_effect_gets_a_successor_that_says_it_had(stage, payments):
    order = stage.order()
    made = operation(stage.carry_on(stage.ask_refund(order)))
    stage.rest()
    sql("SET session_replication_role = replica")
    sql(
        "UPDATE operations_operation SET status = 'failed', sealed_receipt = NULL, provider_ref = '' WHERE id = %s",
        made.id,
    )
    sql("SET session_replication_role = DEFAULT")
    stage.move_clock(60)
    assert swept(payments).adopted == 1
    successor = Operation.objects.get(previous=made)
    assert (successor.status, successor.authority_kind) == ("succeeded", "adopted")
    assert loaded(made.id).status == "failed"
    assert Incident.objects.filter(kind="effect_adopted", about=successor.public_id).exists()
    stage.move_clock(DAY + 60)
    assert swept(payments).adopted == 0
    again = stage.carry_on(stage.ask_refund(order))  # the effect that was found is what the intent meets
    assert operation(again) == successor
    assert successor.provider_ref in answer(again)
    assert len(stage.refunds(order)) == 1


def test_an_effect_of_another_amount_under_a_row_that_says_it_had_none_is_an_alarm(stage, payments):
    made = operation(stage.carry_on(stage.ask_refund(stage.order())))
    stage.rest()
    told = CONNECTORS["stripe"].tell({**_listed(stage, made), "amount": SMALL + 1})
    sql("SET session_replication_role = replica")
    sql(
        "UPDATE operations_operation SET status = 'failed', sealed_receipt = NULL, provider_ref = '' WHERE id = %s",
        made.id,
    )
    sql("SET session_replication_role = DEFAULT")
    assert sweep._match(payments, told, AUTHORITY) == (sweep.OURS, made)
    assert Incident.objects.filter(kind="contradiction", about=made.public_id).exists()


def test_what_nobody_sent_and_is_there_is_settled_where_it_stands(stage, payments):
    order = stage.order(LARGE)
    approval = stage.until_asked(stage.ask_refund(order))
    waiting = approval.operation
    stage.rest()
    call = sweep.call_of(loaded(waiting.id))
    CONNECTORS["stripe"].send(call, CONNECTORS["stripe"].build(call), lambda: None)  # by a lost life of ours
    before = stage.provider.books()["calls"]
    stage.move_clock(60)
    assert swept(payments).adopted == 1
    made = loaded(waiting.id)
    assert (made.status, made.authority_kind, made.attempts) == ("succeeded", "adopted", 0)
    approval.refresh_from_db()
    assert approval.status == "withdrawn"
    told = [data for type, data in story(made.run) if type == "approval.decided"]
    assert [(data["status"], data["by"]) for data in told] == [("withdrawn", "system")]
    stage.carry_on(made.run)
    assert stage.provider.books()["calls"] == before
    assert len(stage.refunds(order)) == 1


def sent_and_lost(stage):
    """The id of a refund that the provider has made, and whose sender died before it heard so."""
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    CONNECTORS["stripe"].send(departure.call, departure.request, lambda: None)  # and then the sender died
    return approval.operation_id


def test_what_is_in_doubt_is_settled_by_the_list(stage, payments):
    lost = sent_and_lost(stage)
    stage.move_clock(60)
    assert (swept(payments).ours, loaded(lost).status) == (1, "succeeded")
    assert not Incident.objects.exists()


def test_another_tenants_effect_on_the_same_account_is_somebody_elses(stage, payments):
    stage.carry_on(stage.ask_refund(stage.order()))
    other = factories.tenant("globex")
    theirs = factories.connection(other, "stripe", stage.provider.payments_url, STRIPE_KEY)
    stage.move_clock(60)
    assert swept(theirs).adopted == 0
    assert not Operation.objects.filter(tenant=other).exists()


def test_another_connections_effect_on_the_same_account_settles_nothing_here(stage, payments):
    lost = sent_and_lost(stage)
    twin = factories.connection(stage.tenant, "stripe", stage.provider.payments_url, STRIPE_KEY, name="twin")
    stage.move_clock(60)
    done = swept(twin)
    assert (done.ours, done.adopted) == (0, 0)
    assert loaded(lost).status == "executing"


def test_an_effect_of_the_contract_test_is_nobodys(stage, payments):
    made = operation(stage.carry_on(stage.ask_refund(stage.order())))
    stage.rest()
    trial = CONNECTORS["stripe"].tell({**_listed(stage, made), "metadata": {"operation_id": "trial_01"}})
    assert sweep._match(payments, trial, AUTHORITY) == (sweep.TRIAL, None)


def test_a_message_that_nobody_could_place_is_placed(stage, payments):
    from operations import unmatched

    order = stage.order()
    lost = operation(stage.carry_on(stage.ask_refund(order)))
    stage.rest()
    client = stripe.StripeClient(STRIPE_KEY, base_addresses={"api": stage.provider.payments_url})
    refund = client.v1.refunds.retrieve(lost.provider_ref).to_dict()
    refund_by_hand(stage, stage.order(), 100)
    forget(lost)
    told = CONNECTORS["stripe"].tell(refund)
    strange = {**refund, "id": "re_strange", "metadata": {}}
    for each in (told, CONNECTORS["stripe"].tell(strange)):
        unmatched.keep(payments, sweep.Source.WEBHOOK, sweep._bare(each), claims=each.operation_id)
    stage.move_clock(60)
    swept(payments)
    closed = dict(Unmatched.objects.values_list("provider_ref", "closed_as"))
    assert closed == {lost.provider_ref: "adopted", "re_strange": "foreign"}
    assert Unmatched.objects.get(closed_as="adopted").operation_id == lost.id


def test_a_sweep_goes_on_where_it_was_cut_and_misses_no_day(stage, payments, monkeypatch):
    monkeypatch.setattr("operations.connectors.stripe.account.PAGE_LENGTH", 1)
    for _ in range(3):
        stage.carry_on(stage.ask_refund(stage.order()))
    stage.rest()
    stage.move_clock(60)
    assert [row.connector for row in sweep.due()] == ["stripe", "shop"]
    cut = sweep.carry_on(payments, AUTHORITY, pages=2)
    assert (cut.finished_at, cut.listed, cut.cursor != "") == (None, 2, True)
    Sweep.objects.filter(pk=cut.pk).update(lease_expires_at=sweep.now() + sweep.LEASE)
    assert sweep.carry_on(payments, AUTHORITY).listed == 2  # somebody else is at it
    stage.move_clock(sweep.LEASE.total_seconds() + 1)  # and died
    first = sweep.carry_on(payments, AUTHORITY, pages=10_000)
    assert (first.pk, first.ours) == (cut.pk, 3)
    assert payments not in sweep.due()
    stage.move_clock(9 * DAY)
    assert payments in sweep.due()
    second = sweep.begin(payments)
    assert second.since == first.until - sweep.OVERLAP
    assert second.until > first.until + 8 * (sweep.EVERY)


def test_an_effect_of_another_tenant_on_the_same_account_is_somebody_elses_and_never_adopted(stage):
    same_account = factories.connection(factories.tenant("globex"), "stripe", stage.provider.payments_url)
    stage.carry_on(stage.ask_refund(stage.order()))
    stage.rest()
    stage.move_clock(60)
    done = swept(same_account)
    assert (done.foreign, done.ours, done.adopted) == (1, 0, 0)
    assert not Operation.objects.filter(tenant=same_account.tenant).exists()
    assert not Incident.objects.exists()


def test_one_effect_that_cannot_be_matched_stops_no_other_of_its_list(stage, payments, monkeypatch):
    made = [operation(stage.carry_on(stage.ask_refund(stage.order()))) for _ in range(2)]
    stage.rest()
    hear = CONNECTORS["stripe"].hear

    def heard(call, told):
        if told.operation_id == made[0].public_id:
            raise RuntimeError("a fault of the connector")
        return hear(call, told)

    monkeypatch.setattr(CONNECTORS["stripe"], "hear", heard)
    stage.move_clock(60)
    done = swept(payments)
    assert (done.ours, done.listed) == (1, 2)
    incident = Incident.objects.get(kind="effect_unreadable", closed_at=None)
    assert incident.about == str(payments.id), "it is money, so somebody has to look"


def test_one_list_that_cannot_be_gone_through_stops_no_other(stage, payments, monkeypatch):
    gone = factories.connection(stage.tenant, "shop", "", name="gone")
    Connection.objects.filter(pk=gone.pk).update(connector="gone")  # a release without it

    def listed(*_):
        raise RuntimeError("a fault of the connector")

    monkeypatch.setattr(CONNECTORS["stripe"], "list_effects", listed)
    assert [row.connector for row in sweep.due()] == ["stripe", "shop"]
    assert sweep.sweep_due(AUTHORITY) == 1  # the shop's


def test_a_provider_that_cannot_be_read_is_asked_again_and_the_command_says_so(stage, payments):
    stage.carry_on(stage.ask_refund(stage.order()))
    stage.rest()
    stage.provider.fault("unreachable", door="payments")
    stage.move_clock(60)
    assert sweep.sweep_due(AUTHORITY) == 1  # the shop's
    stage.provider.fault("ok")
    out = StringIO()
    call_command("operation", "sweep", tenant="acme", stdout=out)
    said = out.getvalue()
    assert "acme/stripe: " in said
    assert "through: " in said
    assert "1 ours" in said
    assert "acme/mail: its provider cannot list" in said


def test_a_cancelled_order_that_is_unknown_here_is_adopted_and_a_note_is_left_to_people(stage):
    shop = Connection.objects.select_related("tenant").get(connector="shop")
    order = stage.order()
    approval = stage.until_asked(stage.ask_cancel(order))
    stage.decide(approval, stage.reviewer())
    stage.carry_on(approval.operation.run)
    noted = operation(stage.carry_on(stage.start("Add a note: call back.", "assistant")), "note.add")
    stage.rest()
    sql("SET session_replication_role = replica")
    sql("DELETE FROM approvals_approval")
    sql("DELETE FROM approvals_decision")
    sql("SET session_replication_role = DEFAULT")
    lost = loaded(approval.operation_id)
    for each in (lost, noted):
        forget(each)
    stage.move_clock(60)
    assert swept(shop).adopted == 1
    assert loaded(lost.id).status == "succeeded"
    assert Unmatched.objects.get(closed_at=None).claims == noted.public_id
