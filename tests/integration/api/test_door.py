from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from agentops.kernel.broker import broker
from agentops.tenancy import rates
from agentops.tenancy.models import ApiToken, Membership, Tenant
from agentops.tenancy.principals import SCOPES, authenticate
from runs.models import AgentRun

REFUND = {"agent": "support-agent", "input": "Please refund A-1002."}
ROUTES = [
    ("post", "/v1/runs", "runs:write"),
    ("get", "/v1/runs/x", "runs:read"),
    ("post", "/v1/runs/x/cancel", "runs:write"),
    ("get", "/v1/runs/x/approvals", "approvals:read"),
    ("post", "/v1/runs/x/approvals/approve", "approvals:decide"),
    ("post", "/v1/runs/x/approvals/reject", "approvals:decide"),
    ("get", "/v1/operations/x", "operations:read"),
]


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic YTpi", "agops_x"])
def test_every_route_asks_for_a_token(db, method, path, scope, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = getattr(Client(), method)(path, headers=headers)
    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["WWW-Authenticate"] == 'Bearer realm="agentops"'
    assert "Authorization: Bearer" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["agops_" + "x" * 43, "x", "agops_\xe9"])
def test_a_wrong_token_is_told_so(db, token):
    answer = Client().get("/v1/runs/x", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == 'Bearer realm="agentops", error="invalid_token"'
    assert answer.json()["code"] == "invalid_token"


@pytest.mark.parametrize("change", ["expired", "revoked", "suspended", "inactive"])
def test_a_token_ends_with_its_time_its_revocation_its_tenant_and_its_person(acme, person, caller_of, change):
    rosa = person(acme, "rosa")
    caller = caller_of(acme, "runs:read", person=rosa)
    assert caller.get("/v1/runs/x").status_code == 404
    match change:
        case "expired":
            ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        case "revoked":
            ApiToken.objects.update(revoked_at=timezone.now())
        case "suspended":
            Tenant.objects.update(state=Tenant.State.SUSPENDED)
        case "inactive":
            rosa.is_active = False
            rosa.save()
    assert caller.get("/v1/runs/x").status_code == 401


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
def test_every_route_asks_for_its_scope(acme, caller_of, method, path, scope):
    caller = caller_of(acme, *(other for other in SCOPES if other != scope))
    answer = getattr(caller, method)(path)
    assert answer.status_code == 403
    assert answer.json()["code"] == "missing_scope"
    assert scope in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/v1/runs/x", "runs:read"),
        ("/v1/runs/x/approvals", "approvals:read"),
        ("/v1/operations/x", "operations:read"),
    ],
)
def test_a_persons_token_sees_what_that_person_may_see(acme, globex, person, caller_of, path, scope):
    rosa = person(acme, "rosa", Membership.Role.REVIEWER)
    assert caller_of(acme, scope, person=rosa).get(path).status_code == 404
    elsewhere = person(globex, "gita", Membership.Role.REVIEWER)
    answer = caller_of(acme, scope, person=elsewhere).get(path)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_right")


def test_a_persons_token_starts_runs_with_that_persons_right(acme, globex, person, caller_of):
    engineer = person(acme, "emil", Membership.Role.ENGINEER)
    others = [person(acme, "rosa"), person(globex, "gita", Membership.Role.ENGINEER)]
    for each in others:
        answer = caller_of(acme, "runs:write", person=each).post("/v1/runs", REFUND, key="k")
        assert (answer.status_code, answer.json()["code"]) == (403, "no_right")
    assert not AgentRun.objects.exists()
    caller = caller_of(acme, "runs:write", person=engineer)
    assert caller.post("/v1/runs", REFUND, key="k").status_code == 201
    engineer.groups.clear()
    assert caller.post("/v1/runs", REFUND, key="k").status_code == 403


def test_a_session_is_no_token(acme, person):
    client = Client(enforce_csrf_checks=True)
    client.force_login(person(acme, "rosa"))
    assert client.get("/v1/runs/x").status_code == 401
    assert client.post("/v1/runs", REFUND, content_type="application/json").status_code == 401


def test_a_token_needs_no_csrf_token(caller):
    client = Client(enforce_csrf_checks=True)
    headers = {"Authorization": f"bearer {caller.token}", "Idempotency-Key": "k"}
    answer = client.post("/v1/runs", REFUND, content_type="application/json", headers=headers)
    assert answer.status_code == 201


def test_each_answer_tells_what_is_left_of_the_minute(caller, settings):
    settings.AGENTOPS_RATE_PER_MINUTE = 7
    for left in (6, 5):
        answer = caller.get("/v1/runs/x")
        assert answer["RateLimit-Policy"] == '"default";q=7;w=60'
        assert answer["RateLimit"].startswith(f'"default";r={left};t=')


def test_above_the_rate_nothing_is_done_and_the_answer_says_when_to_come_back(caller, settings):
    settings.AGENTOPS_RATE_PER_MINUTE = 2
    caller.get("/v1/runs/x")
    caller.get("/v1/runs/x")
    answer = caller.post("/v1/runs", REFUND, key="k")
    assert answer.status_code == 429
    assert answer.json()["code"] == "rate_limited"
    assert 0 < int(answer["Retry-After"]) <= 60
    assert answer["RateLimit-Policy"] == '"default";q=2;w=60'
    assert answer["RateLimit"] == f'"default";r=0;t={answer["Retry-After"]}'
    assert not AgentRun.objects.exists()


def test_the_rate_is_each_tokens_own(acme, caller_of, settings):
    settings.AGENTOPS_RATE_PER_MINUTE = 1
    for _ in range(2):
        assert caller_of(acme, "runs:read").get("/v1/runs/x").status_code == 404


def test_the_window_ends_by_itself(caller):
    caller.get("/v1/runs/x")
    name = authenticate(caller.token, "rest").name
    assert 0 < broker().pttl(f"agentops:rate:{name}") <= 60_000


@pytest.fixture
def _no_broker(settings, monkeypatch):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    monkeypatch.setattr(rates, "_blind_until", 0.0)
    broker.cache_clear()
    yield
    broker.cache_clear()


@pytest.mark.usefixtures("_no_broker")
def test_without_the_broker_requests_are_let_through_and_it_is_logged(caller, settings, caplog):
    settings.AGENTOPS_RATE_PER_MINUTE = 1
    for number in range(3):
        answer = caller.post("/v1/runs", REFUND, key=str(number))
        assert answer.status_code == 201
        assert "RateLimit" not in answer
    assert sum("rate_not_counted" in record.getMessage() for record in caplog.records) == 1
