import json
import logging

import pytest
from django.db import connection
from django.test import Client

from runs.models import AgentRun

REFUND = {"agent": "support-agent", "input": "Please refund A-1002."}


def is_problem(answer, status, code):
    problem = json.loads(answer.content)
    assert answer["Content-Type"] == "application/problem+json"
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert problem["type"] == f"urn:agentops:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["instance"].startswith("/v1")
    assert problem["request_id"] == answer["X-Request-ID"]
    assert "Content-Security-Policy" in answer
    return problem


@pytest.mark.parametrize(
    "path", ["/v1/", "/v1/nothing", "/v1/runs/", "/v1/runs/x/y/z", "/v1/me", "/v1/docs/"]
)
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_an_unknown_address_is_a_problem_that_names_the_docs(method, path):
    problem = is_problem(getattr(Client(), method)(path), 404, "not_found")
    assert "/v1/docs" in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("get", "/v1/runs", "POST"),
        ("put", "/v1/runs", "POST"),
        ("post", "/v1/runs/x", "GET"),
        ("head", "/v1/runs/x", "GET"),
        ("get", "/v1/runs/x/cancel", "POST"),
        ("post", "/v1/runs/x/approvals", "GET"),
        ("patch", "/v1/operations/x", "GET"),
        ("options", "/v1/runs", "POST"),
        ("post", "/v1/docs", "GET"),
        ("delete", "/v1/openapi.json", "GET"),
    ],
)
def test_a_wrong_method_is_a_problem_that_names_the_right_one(method, path, allowed):
    answer = getattr(Client(), method)(path)
    assert answer.status_code == 405
    assert allowed in answer["Allow"]
    assert answer["Content-Type"] == "application/problem+json"
    if method != "head":
        assert allowed in is_problem(answer, 405, "method_not_allowed")["detail"]


def test_an_unknown_address_elsewhere_is_a_page():
    assert Client().get("/nothing")["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "{'a': 1}",
        '{"agent": "a", "agent": "b", "input": "x"}',
        '{"budget_cents": NaN}',
        "[" * 100_000,
    ],
)
def test_malformed_json_is_a_problem(caller, body):
    problem = is_problem(caller.post("/v1/runs", body, key="k"), 400, "malformed_json")
    assert "send it again" in problem["detail"] or "Send a JSON object" in problem["detail"]


def test_json_that_is_not_utf_8_is_malformed(caller):
    body = '{"agent": "support-agent", "input": "café"}'.encode("latin-1")
    is_problem(caller.post("/v1/runs", body, key="k"), 400, "malformed_json")


@pytest.mark.parametrize("body", ["[]", "1", '"text"', "null", '[{"agent": "a", "input": "b"}]'])
def test_json_that_is_no_object_is_invalid(caller, body):
    problem = is_problem(caller.post("/v1/runs", body, key="k"), 422, "invalid")
    assert problem["errors"][0]["pointer"] == ""


def test_json_nested_deep_is_refused_and_breaks_nothing(caller):
    body = '{"agent": "support-agent", "input": "x", "metadata": {"a": ' + "[" * 900 + "]" * 900 + "}}"
    is_problem(caller.post("/v1/runs", body, key="k"), 422, "invalid")


def test_hundreds_of_faults_are_answered_with_the_first_ones(caller):
    body = REFUND | {f"x{number}": 1 for number in range(500)}
    problem = is_problem(caller.post("/v1/runs", body, key="k"), 422, "invalid")
    assert len(problem["errors"]) == 20


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_that_is_not_json_is_a_problem(caller, content_type):
    answer = Client().post(
        "/v1/runs",
        json.dumps(REFUND),
        content_type=content_type,
        headers={"Authorization": f"Bearer {caller.token}", "Idempotency-Key": "k"},
    )
    problem = is_problem(answer, 415, "unsupported_media_type")
    assert "application/json" in problem["detail"]


def test_json_may_name_its_charset(caller):
    answer = Client().post(
        "/v1/runs",
        json.dumps(REFUND),
        content_type="application/json; charset=utf-8",
        headers={"Authorization": f"Bearer {caller.token}", "Idempotency-Key": "k"},
    )
    assert answer.status_code == 201


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs/x/cancel", "/v1/runs/x/approvals/approve"])
@pytest.mark.parametrize("size", [256 * 1024 + 1, 3 * 1024 * 1024])
def test_a_body_above_the_limit_is_a_problem(acme, caller_of, path, size):
    caller = caller_of(acme, "runs:write", "approvals:decide")
    body = json.dumps(REFUND | {"input": ""})
    body = json.dumps(REFUND | {"input": "x" * (size - len(body))})
    assert len(body) == size
    problem = is_problem(caller.post(path, body, key="k"), 413, "body_too_large")
    assert "256 KiB" in problem["detail"]
    assert not AgentRun.objects.exists()


def test_a_body_at_the_limit_is_taken(caller):
    rest = len(json.dumps(REFUND | {"input": ""}))
    body = json.dumps(REFUND | {"input": "x" * (256 * 1024 - rest)})
    assert len(body) == 256 * 1024
    assert caller.post("/v1/runs", body, key="k").status_code == 201


def test_a_wrong_host_is_a_problem():
    is_problem(Client().get("/v1/docs", headers={"Host": "evil.example"}), 400, "bad_request")


@pytest.fixture
def broken(acme):
    """Something that nobody expected: the table of runs is not as the code knows it."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_agentrun RENAME COLUMN steps_taken TO secret_column")


def test_an_unexpected_error_is_masked_and_logged_under_its_request_id(caller, broken, caplog):
    with caplog.at_level(logging.ERROR):
        answer = caller.get("/v1/runs/run_" + "0" * 26, X_Request_ID="mine-1")
    problem = is_problem(answer, 500, "internal")
    assert problem["request_id"] == "mine-1"
    assert "steps_taken" not in answer.content.decode()
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "unexpected_error" in logged
    assert "mine-1" in logged
    assert "steps_taken" in caplog.text


def test_without_the_database_the_answer_is_503_with_when_to_come_back(away, caller):
    with away():
        answer = caller.post("/v1/runs", REFUND, key="k")
    problem = is_problem(answer, 503, "unavailable")
    assert int(answer["Retry-After"]) > 0
    assert "same Idempotency-Key" in problem["detail"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("abc-1_2.3", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("a b", False),
        ("a\tb", False),
        ("é", False),
    ],
)
def test_a_plain_request_id_is_echoed_and_any_other_replaced(sent, kept):
    answer = Client().get("/v1/nothing", headers={"X-Request-ID": sent})
    assert (answer["X-Request-ID"] == sent) == kept
    assert answer.json()["request_id"] == answer["X-Request-ID"]
