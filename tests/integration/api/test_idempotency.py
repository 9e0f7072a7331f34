from datetime import timedelta

import pytest
from django.db import connection

from agentops.kernel.clock import Now
from agentops.tenancy.principals import SCOPES
from runs.models import AgentRun, IdempotencyKey

REFUND = {"agent": "support-agent", "input": "Please refund A-1002."}
KEPT_HEADERS = ("Content-Type", "Location")


def test_a_start_without_a_key_is_refused_with_what_to_do(caller):
    answer = caller.post("/v1/runs", REFUND)
    assert answer.status_code == 400
    assert answer.json()["code"] == "idempotency_key_missing"
    assert "unique value" in answer.json()["detail"]
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize("key", ["", "x" * 256, "schlüssel"])
def test_a_key_that_breaks_the_rule_is_refused_with_the_rule(caller, key):
    answer = caller.post("/v1/runs", REFUND, key=key)
    assert answer.status_code == 400
    assert "1 to 255 characters" in answer.json()["detail"]


def test_a_repeat_gets_the_same_answer_byte_for_byte(caller):
    first = caller.post("/v1/runs", REFUND, key="k")
    again = caller.post("/v1/runs", REFUND, key='"k"')
    assert again.status_code == first.status_code == 201
    assert again.content == first.content
    assert [again[name] for name in KEPT_HEADERS] == [first[name] for name in KEPT_HEADERS]
    assert again["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    assert AgentRun.objects.count() == 1


def test_a_repeat_tells_the_present_state_beside_the_first_answer(caller):
    first = caller.post("/v1/runs", REFUND, key="k").json()
    caller.post(first["status_url"] + "/cancel")
    again = caller.post("/v1/runs", REFUND, key="k")
    assert again.json()["status"] == "queued"
    assert again["Run-Status"] == "cancelled"


def test_a_repeat_may_word_its_json_otherwise(caller):
    caller.post("/v1/runs", '{"agent":"support-agent","input":"caf\\u00e9","actor":null}', key="k")
    again = caller.post("/v1/runs", '{ "input": "cafe\u0301", "agent": "support-agent" }'.encode(), key="k")
    assert again["Idempotency-Replayed"] == "true"


def test_the_same_key_with_another_body_is_refused(caller):
    caller.post("/v1/runs", REFUND, key="k")
    answer = caller.post("/v1/runs", REFUND | {"input": "Please refund A-1003."}, key="k")
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_key_reused"
    assert AgentRun.objects.count() == 1


def test_a_stored_200_is_repeated_as_200(caller):
    body = REFUND | {"dedupe_key": "A-1002"}
    caller.post("/v1/runs", body, key="k1")
    hit = caller.post("/v1/runs", body, key="k2")
    caller.post(hit.json()["status_url"] + "/cancel")
    again = caller.post("/v1/runs", body, key="k2")
    assert (again.status_code, again.content) == (200, hit.content)


@pytest.mark.parametrize(
    "broken", [{"agent": "nobody"}, {"input": ""}, {"x": 1}, {"metadata": {"caf\u00e9": 1, "cafe\u0301": 2}}]
)
def test_a_failed_validation_leaves_the_key_free(caller, broken):
    assert caller.post("/v1/runs", REFUND | broken, key="k").status_code == 422
    assert caller.post("/v1/runs", REFUND, key="k").status_code == 201


def test_a_key_belongs_to_one_caller(acme, globex, caller_of):
    answers = [
        caller_of(tenant, *SCOPES).post("/v1/runs", REFUND, key="k") for tenant in (acme, acme, globex)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert AgentRun.objects.count() == 3


def test_a_key_is_kept_seven_days_and_then_free(caller):
    caller.post("/v1/runs", REFUND, key="k")
    stored = IdempotencyKey.objects.get()
    assert stored.expires_at - stored.created_at >= timedelta(days=7) - timedelta(seconds=1)
    IdempotencyKey.objects.update(expires_at=Now() + timedelta(seconds=5))
    assert caller.post("/v1/runs", REFUND, key="k")["Idempotency-Replayed"] == "true"
    IdempotencyKey.objects.update(expires_at=Now())
    fresh = caller.post("/v1/runs", REFUND, key="k")
    assert fresh.status_code == 201
    assert "Idempotency-Replayed" not in fresh
    assert AgentRun.objects.count() == 2


def test_the_answer_rests_sealed(caller):
    body = caller.post("/v1/runs", REFUND, key="k").content
    stored = bytes(IdempotencyKey.objects.get().sealed_body)
    assert body not in stored


@pytest.mark.django_db(transaction=True)
def test_without_the_store_nothing_is_started(caller):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_idempotencykey RENAME TO runs_idempotencykey_away")
    try:
        answer = caller.post("/v1/runs", REFUND, key="k")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE runs_idempotencykey_away RENAME TO runs_idempotencykey")
    assert answer.status_code == 503
    assert answer.json()["code"] == "idempotency_unavailable"
    assert int(answer["Retry-After"]) > 0
    assert not AgentRun.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_stored_is_not_started(caller):
    """The store breaks after the run was made: run, event and answer go together or not at all."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_idempotencykey ADD CONSTRAINT broken CHECK (response_status > 999)")
    try:
        answer = caller.post("/v1/runs", REFUND, key="k")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE runs_idempotencykey DROP CONSTRAINT broken")
    assert answer.status_code == 503
    assert not AgentRun.objects.exists()
    assert caller.post("/v1/runs", REFUND, key="k").status_code == 201
