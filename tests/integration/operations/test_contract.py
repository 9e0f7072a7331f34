"""The contract test: what a connector declares is proved on its provider or denied by it, and recovery obeys the grade."""

from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agentops.audit.models import AuditEntry
from approvals.services import AUTHORITY
from operations.connectors.registry import CONNECTORS
from operations.contract import ABILITIES, CannotTry, ground, prove
from operations.dispatch import depart, loaded, rehearse, send
from operations.grades import Reliance, present_grade, reliance
from operations.models import Connection, Operation
from operations.reconcile import carry_on
from tests import factories
from tests.conformance.connectors.servers import MailServer
from tests.stage import LARGE, operation

UNTIL_QUIET_SECONDS = 5 + 1 + 2


@pytest.fixture(autouse=True)
def _impatient(settings):
    settings.AGENTOPS_SEND_SECONDS = 1


def check(name: str, **options) -> str:
    """What `connector check` prints, its complaint at the end."""
    out = StringIO()
    try:
        call_command("connector", "check", name, stdout=out, **options)
    except CommandError as error:
        out.write(f"ERROR {error}")
    return out.getvalue()


def outcomes(connection: Connection) -> dict[str, str]:
    return {proof["ability"]: proof["outcome"] for proof in connection.proofs}


def able(monkeypatch, name: str, **changed) -> None:
    monkeypatch.setattr(type(CONNECTORS[name]), "abilities", replace(CONNECTORS[name].abilities, **changed))


@pytest.fixture
def allowed(stage):
    """A refund that a person allowed, and nobody at work."""
    approval = stage.until_asked(stage.ask_refund(stage.order(LARGE)))
    stage.rest()
    stage.decide(approval, stage.reviewer())
    return loaded(approval.operation_id)


def test_what_the_shipped_connectors_declare_is_proved_and_stored_with_its_evidence(stage):
    Connection.objects.update(grade="", graded_version=None, proofs=[])
    order = stage.order()
    said = check("stripe") + check("shop", target=order["id"]) + check("mail")
    assert "ERROR" not in said
    assert said.count("grade: at most once and verifiable") == 3
    for connection in Connection.objects.all():
        assert (present_grade(connection), connection.graded_version) == (
            "verifiable",
            CONNECTORS[connection.connector].version,
        )
        assert set(outcomes(connection).values()) <= {"proved", "not_declared"}
    stripe = {each["ability"]: each for each in Connection.objects.get(connector="stripe").proofs}
    assert {name for name, each in stripe.items() if each["outcome"] == "proved"} == set(ABILITIES)
    evidence = stripe["honours_idempotency_keys"]["values"]
    assert evidence["first"] == evidence["again"]
    assert evidence["first"] in [refund["id"] for refund in stage.provider.books()["refunds"]]
    assert evidence["first"] in said
    assert len(stage.cancellations(order)) == 1
    assert AuditEntry.objects.filter(verb="connection.graded").count() == 3
    assert not Operation.objects.exists()


def test_without_an_order_to_cancel_the_shop_is_tried_with_a_note_that_no_customer_sees(stage):
    said = check("shop")
    assert "not proved: there was nothing to try it with" in said
    assert "ERROR" not in said
    assert present_grade(Connection.objects.get(connector="shop")) == "verifiable"
    assert [note["tenant"] for note in stage.provider.books()["notes"][-1:]] == ["acme-trial"]


CONTRADICTED = [
    ("no_key_support", {}, {}, "honours keys", "had a second effect", "unverifiable"),
    ("forget_keys_after", {"seconds": 0.15}, {"wait": 0.2}, "key lifetime", "was forgotten", "verifiable"),
    ("lookup_lag", {"seconds": 60}, {}, "look-up lag", "it was not found", "key_lifetime"),
]


def test_an_ability_that_the_provider_contradicts_is_a_failure_in_a_clear_sentence(stage, monkeypatch):
    able(monkeypatch, "stripe", look_up_lag_seconds=0.3)
    stripe = Connection.objects.get(connector="stripe")
    for fault, more, options, ability, sentence, grade in CONTRADICTED:
        stage.provider.fault(fault, **more)
        said = check("stripe", **options)
        assert sentence in said
        assert f"ERROR The provider contradicts what is declared: acme/stripe: {ability}" in said, fault
        stripe.refresh_from_db()
        assert (present_grade(stripe), reliance(stripe).keys) == (grade, grade != "unverifiable")
        stage.provider.fault("ok")


def test_a_provider_that_cannot_be_asked_proves_nothing(stage):
    stage.provider.fault("unreachable", door="payments")
    with pytest.raises(CannotTry, match="Connect"):
        list(prove(Connection.objects.get(connector="stripe")))
    stage.provider.fault("auth_failed", door="shop")
    said = check("shop")
    assert said.count("not proved: the trial itself was not carried out (blocked/access_revoked)") == 7
    assert present_grade(Connection.objects.get(connector="shop")) == "unverifiable"


def test_a_live_connection_is_never_tried_out(stage):
    before = stage.provider.books()
    stripe = Connection.objects.get(connector="stripe")
    Connection.objects.filter(pk=stripe.pk).update(mode="live")
    assert "live: the contract test really changes something" in check("stripe", connection="stripe")
    assert "no such connection" in check("stripe")
    stripe.refresh_from_db()
    trial = CONNECTORS["mail"].trial(ground(Connection.objects.get(connector="mail")))
    with pytest.raises(ValueError, match="is live"):
        rehearse(stripe, trial.call, CONNECTORS["mail"].build(trial.call))
    made = factories.connection(
        stage.tenant, "stripe", stage.provider.payments_url, "sk_live_x", name="second"
    )
    with pytest.raises(CannotTry, match="no test key"):
        list(prove(made))
    assert stage.provider.books() == before


def test_a_mail_server_is_graded_without_a_mail(stage):
    with MailServer() as server:
        smtp = factories.connection(stage.tenant, "mail", server.url, "", name="smtp")
        said = check("mail", connection="smtp")
        assert (said.count("not declared"), server.taken) == (7, [])
    smtp.refresh_from_db()
    assert present_grade(smtp) == "unverifiable"


def test_a_grade_expires_with_the_version_of_its_connector(stage, monkeypatch):
    stripe = Connection.objects.get(connector="stripe")
    assert reliance(stripe) == Reliance(keys=True, absence=True)
    monkeypatch.setattr(type(CONNECTORS["stripe"]), "version", 2)
    assert (present_grade(stripe), reliance(stripe)) == (None, Reliance())
    check("stripe")
    stripe.refresh_from_db()
    assert (present_grade(stripe), stripe.graded_version) == ("verifiable", 2)


def test_a_live_connection_stands_on_the_proofs_of_a_tested_twin_of_its_own_tenant(stage):
    live = factories.connection(stage.tenant, "stripe", "", "sk_live_x", name="live", mode="live", grade="")
    assert present_grade(live) == "verifiable"
    other = factories.tenant("globex")
    foreign = factories.connection(other, "stripe", "", "sk_live_y", mode="live", grade="")
    assert (present_grade(foreign), reliance(foreign)) == (None, Reliance())
    smtp = factories.connection(stage.tenant, "mail", "smtp://x", "", name="smtp", mode="live", grade="")
    assert present_grade(smtp) is None  # its twin delivers into a folder, which can do more


def lost(stage, operation, fault: str):
    """Its answer was lost, and so much time has passed that a look-up means something."""
    departure = depart(operation, AUTHORITY, worker="test")
    stage.provider.fault(fault, times=1, door="payments")
    assert send(departure).status == "unknown"
    stage.move_clock(UNTIL_QUIET_SECONDS + 1)
    return carry_on(operation.id, AUTHORITY, worker="test")


@pytest.mark.parametrize("proofs", [[], ["honours_idempotency_keys"]])
def test_what_is_declared_and_not_proved_is_not_used_for_sending_again(stage, allowed, proofs):
    before = stage.provider.books()["calls"]
    rows = [{"ability": name, "outcome": "proved", "code": "", "values": {}} for name in proofs]
    Connection.objects.filter(connector="stripe").update(proofs=rows, grade="unverifiable")
    made = lost(stage, allowed, "drop_before_commit")
    if proofs:  # the key alone makes it safe to ask again
        assert (made.status, made.attempts) == ("succeeded", 2)
    else:
        assert (made.status, made.error_code, made.attempts) == ("escalated", "keys_not_proved", 1)
        assert stage.provider.books()["calls"] == before + 1


def test_what_is_not_proved_is_still_looked_up(stage, allowed):
    Connection.objects.update(proofs=[], grade="unverifiable")
    made = lost(stage, allowed, "commit_then_drop")
    assert (made.status, made.attempts) == ("succeeded", 1)


def test_where_absence_is_not_proved_no_new_key_is_taken_and_nothing_is_called_failed(stage, allowed):
    rows = [{"ability": "honours_idempotency_keys", "outcome": "proved", "code": "", "values": {}}]
    Connection.objects.filter(connector="stripe").update(proofs=rows, grade="key_lifetime")
    stage.provider.fault("lookup_lag", seconds=60)
    made = lost(stage, allowed, "commit_then_500")  # and then the same 500 again, as a stored one
    assert made.status == "unknown"
    stage.move_clock(UNTIL_QUIET_SECONDS + 1)
    made = carry_on(allowed.id, AUTHORITY, worker="test")
    assert (made.status, made.error_code, made.generation) == ("escalated", "absence_not_proved", 0)


def test_at_most_once_within_the_keys_lifetime_asks_by_the_key_where_nothing_can_be_looked_up(
    stage, monkeypatch
):
    able(monkeypatch, "shop", can_look_up=False)
    stage.provider.fault("commit_then_drop", times=1, door="shop")
    run = stage.start("Add a note: call back on Monday.", "assistant")
    stage.carry_on(run, lambda row: row.operations.filter(status="unknown").exists())
    stage.rest()
    made = operation(run, "note.add")
    assert carry_on(made.id, AUTHORITY, worker="test").attempts == 1  # not before it is quiet
    stage.move_clock(UNTIL_QUIET_SECONDS + 1)
    made = carry_on(made.id, AUTHORITY, worker="test")
    assert (made.status, made.attempts) == ("succeeded", 2)
    notes = stage.provider.books()["notes"]
    assert [note["operation_id"] for note in notes].count(made.public_id) == 1


def test_without_look_ups_a_dead_key_is_a_persons(stage, allowed, monkeypatch):
    able(monkeypatch, "stripe", can_look_up=False)
    departure = depart(allowed, AUTHORITY, worker="test")
    stage.provider.fault("drop_before_commit", times=1, door="payments")
    send(departure)
    stage.move_clock(24 * 3600)
    made = carry_on(allowed.id, AUTHORITY, worker="test")
    assert (made.status, made.attempts) == ("escalated", 1)
