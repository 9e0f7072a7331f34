from approvals.states import Outcome
from operations.models import Operation


def test_a_pending_operation_has_every_field_of_the_contract(caller, acme, a_run, a_refund):
    run = a_run(acme)
    operation, _ = a_refund(run)
    shown = caller.get(f"/v1/operations/{operation}").json()
    assert shown.pop("created_at").endswith("Z")
    assert shown.pop("updated_at").endswith("Z")
    assert shown == {
        "operation_id": str(operation),
        "run_id": str(run),
        "action": "refund.create",
        "target": "order:A-1002",
        "status": "pending",
        "amount_minor": 48900,
        "currency": "EUR",
        "provider": "stripe",
        "provider_ref": None,
        "receipt": None,
        "error": None,
        "attempts": 0,
        "key_expires_at": None,
    }


def test_a_succeeded_operation_shows_the_providers_proof(caller, acme, a_run, a_refund, settled):
    operation = settled(a_refund(a_run(acme), outcome=Outcome.ALLOW)[0])
    shown = caller.get(f"/v1/operations/{operation}").json()
    assert (shown["status"], shown["provider_ref"], shown["attempts"]) == ("succeeded", "re_1", 1)
    assert shown["receipt"]["id"] == "re_1"
    assert shown["receipt"]["amount"] == 48900


def test_an_operation_on_its_way_shows_until_when_its_key_is_good(caller, acme, a_run, a_refund, sent):
    operation = sent(a_refund(a_run(acme), outcome=Outcome.ALLOW)[0])
    shown = caller.get(f"/v1/operations/{operation}").json()
    assert shown["status"] == "executing"
    assert shown["key_expires_at"].endswith("Z")


def test_a_refused_operation_says_why(caller, acme, a_run, a_refund):
    operation, _ = a_refund(a_run(acme), outcome=Outcome.DENY)
    shown = caller.get(f"/v1/operations/{operation}").json()
    assert shown["status"] == "rejected"
    assert shown["error"] == {"code": "refund.limit", "detail": "Above the limit."}


def test_an_operation_without_money_names_none(caller, acme, a_run, a_refund):
    operation, _ = a_refund(a_run(acme))
    Operation.objects.update(amount_minor=None, currency="")
    assert not {"amount_minor", "currency"} & set(caller.get(f"/v1/operations/{operation}").json())


def test_reading_an_operation_needs_its_scope(acme, caller_of, a_run, a_refund):
    operation, _ = a_refund(a_run(acme))
    assert caller_of(acme, "runs:read").get(f"/v1/operations/{operation}").status_code == 403


def test_another_tenants_operation_is_not_there(acme, globex, caller_of, a_run, a_refund):
    operation, _ = a_refund(a_run(globex))
    assert caller_of(acme).get(f"/v1/operations/{operation}").status_code == 404
