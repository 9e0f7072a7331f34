import json

import pytest

from agentops.audit.entries import Actor
from agentops.kernel.clock import Now
from agentops.kernel.ids import parse
from agentops.tenancy.models import Tenant
from runs.events import opened
from runs.holds import pause_agent, resume_agent
from runs.models import AgentRun, RunEvent
from runs.states import RunStatus

REFUND = {"agent": "support-agent", "input": "Please refund A-1002."}


def run_of(answer):
    return AgentRun.objects.get(pk=parse("run", answer.json()["run_id"]))


def test_a_start_answers_at_once_with_where_to_follow_it(caller):
    answer = caller.post("/v1/runs", REFUND, key="k")
    body = answer.json()
    run_id = body["run_id"]
    assert answer.status_code == 201
    assert body == {
        "run_id": run_id,
        "status": "queued",
        "events_url": f"/v1/runs/{run_id}/events",
        "status_url": f"/v1/runs/{run_id}",
    }
    assert answer["Location"] == f"/v1/runs/{run_id}"
    assert answer["Content-Type"] == "application/json"
    assert run_of(answer).status == RunStatus.QUEUED


def test_everything_that_is_asked_reaches_the_run(caller):
    body = REFUND | {
        "actor": "customer:C-1",
        "conversation_id": "chat-7",
        "budget_cents": 12,
        "max_steps": 3,
        "deadline_seconds": 60,
        "metadata": {"ticket": "T-1", "urgent": True, "tries": 2},
    }
    shown = caller.get(caller.post("/v1/runs", body, key="k").json()["status_url"]).json()
    run = AgentRun.objects.get()
    assert (shown["actor"], shown["conversation_id"], shown["budget_cents"]) == ("customer:C-1", "chat-7", 12)
    assert run.max_steps == 3
    assert 55 < (run.deadline_at - run.created_at).total_seconds() <= 60
    assert run.metadata == {"ticket": "T-1", "urgent": True, "tries": 2}


def test_without_an_actor_a_run_acts_for_the_tenant(caller):
    assert run_of(caller.post("/v1/runs", REFUND, key="k")).actor == "tenant:acme"


def test_the_callers_trace_goes_on_in_the_run(caller):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = caller.post("/v1/runs", REFUND, key="k", traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    assert run_of(answer).trace_id == trace


def test_the_first_event_tells_who_asked_whom(caller):
    run = run_of(caller.post("/v1/runs", REFUND, key="k"))
    event = RunEvent.objects.get(run=run)
    assert event.type == "run.created"
    assert opened(event) == {"agent": "support-agent", "actor": "tenant:acme", "channel": "rest"}


def test_an_active_business_key_returns_its_run_instead_of_a_second_one(caller):
    first = caller.post("/v1/runs", REFUND | {"dedupe_key": "order A-1002"}, key="k1")
    second = caller.post("/v1/runs", REFUND | {"dedupe_key": "order A-1002"}, key="k2")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["run_id"] == second.json()["run_id"]
    assert AgentRun.objects.count() == 1


def test_a_business_key_is_free_again_when_its_run_has_ended(caller):
    first = caller.post("/v1/runs", REFUND | {"dedupe_key": "order A-1002"}, key="k1").json()
    caller.post(first["status_url"] + "/cancel")
    second = caller.post("/v1/runs", REFUND | {"dedupe_key": "order A-1002"}, key="k2")
    assert second.status_code == 201
    assert second.json()["run_id"] != first["run_id"]


def test_a_paused_agent_starts_nothing_and_the_same_key_serves_once_it_is_resumed(caller):
    acme = Tenant.objects.get(slug="acme")
    pause_agent(acme, "support-agent", actor=Actor("user:7", "cli"), reason="It is being mended.")
    answer = caller.post("/v1/runs", REFUND, key="k")
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["title"]) == (
        409,
        "agent_paused",
        "The agent is paused",
    )
    assert "It is being mended." in problem["detail"]
    assert "repeat the request once it is resumed" in problem["detail"]
    assert not AgentRun.objects.exists()
    resume_agent(acme, "support-agent", actor=Actor("user:7", "cli"), reason="Mended.")
    assert caller.post("/v1/runs", REFUND, key="k").status_code == 201


def test_an_unknown_agent_is_named_with_those_there_are(caller):
    answer = caller.post("/v1/runs", REFUND | {"agent": "nobody"}, key="k")
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["code"] == "unknown_agent"
    assert "assistant, support-agent" in problem["detail"]
    assert problem["errors"][0]["pointer"] == "/agent"
    assert not AgentRun.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [
        ("input", "", "/input"),
        ("input", "  \n", "/input"),
        ("input", 7, "/input"),
        ("input", None, "/input"),
        ("agent", "x" * 41, "/agent"),
        ("actor", "nobody", "/actor"),
        ("actor", "customer:C 1", "/actor"),
        ("actor", "customer:C-1\n", "/actor"),
        ("dedupe_key", "", "/dedupe_key"),
        ("dedupe_key", "x" * 121, "/dedupe_key"),
        ("conversation_id", "", "/conversation_id"),
        ("budget_cents", -1, "/budget_cents"),
        ("budget_cents", 0, "/budget_cents"),
        ("budget_cents", "5", "/budget_cents"),
        ("budget_cents", 1.5, "/budget_cents"),
        ("max_steps", 0, "/max_steps"),
        ("max_steps", True, "/max_steps"),
        ("deadline_seconds", 0, "/deadline_seconds"),
        ("metadata", [], "/metadata"),
        ("metadata", {"a": {"b": 1}}, "/metadata/a"),
        ("metadata", {"a/b~": 1.5}, "/metadata/a~1b~0"),
        ("metadata", {"a": "x" * 501}, "/metadata/a"),
        ("metadata", {str(number): number for number in range(51)}, "/metadata"),
        ("tool", "rm", "/tool"),
    ],
)
def test_an_invalid_field_is_answered_with_its_place(caller, field, value, pointer):
    answer = caller.post("/v1/runs", REFUND | {field: value}, key="k")
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["code"] == "invalid"
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert not AgentRun.objects.exists()


def test_a_missing_field_is_answered_with_its_place(caller):
    problem = caller.post("/v1/runs", {"agent": "support-agent"}, key="k").json()
    assert problem["errors"] == [{"pointer": "/input", "detail": "This field is required."}]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (r'{"agent": "support-agent", "input": "a\u0000b"}', "/input"),
        (r'{"agent": "support-agent", "input": "\ud83d"}', "/input"),
        (r'{"agent": "support-agent", "input": "a", "actor": "customer:\u0000"}', "/actor"),
        (r'{"agent": "support-agent", "input": "a", "metadata": {"a": "\udfff"}}', "/metadata/a"),
        (r'{"agent": "support-agent", "input": "a", "metadata": {"\u0000": 1}}', "/metadata/\x00"),
        (r'{"agent": "support-agent", "input": "a", "x": [{"y": "\u0000"}]}', "/x/0/y"),
    ],
)
def test_text_that_cannot_be_stored_is_answered_with_its_place(caller, body, pointer):
    answer = caller.post("/v1/runs", body, key="k")
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


def test_whole_characters_beyond_the_basic_plane_are_text_like_any_other(caller):
    body = json.dumps(REFUND | {"input": "退款 🎿"})
    assert r"\ud83c\udfbf" in body
    assert caller.post("/v1/runs", body, key="k").status_code == 201


def test_labels_that_become_one_are_refused(caller):
    body = REFUND | {"metadata": {"caf\u00e9": 1, "cafe\u0301": 2}}
    assert caller.post("/v1/runs", body, key="k").status_code == 422


def test_a_tenant_at_its_limit_is_told_to_wait_and_nothing_is_started(caller, acme):
    acme.open_runs = 1
    acme.save()
    first = caller.post("/v1/runs", REFUND, key="k1")
    refused = caller.post("/v1/runs", REFUND, key="k2")
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_runs"
    assert int(refused["Retry-After"]) > 0
    assert AgentRun.objects.count() == RunEvent.objects.count() == 1
    caller.post(first.json()["status_url"] + "/cancel")
    assert caller.post("/v1/runs", REFUND, key="k2").status_code == 201


def test_a_run_under_lease_counts_whatever_else_it_is(caller, acme):
    acme.open_runs = 1
    acme.save()
    caller.post("/v1/runs", REFUND, key="k1")
    AgentRun.objects.update(status=RunStatus.RUNNING, lease_owner="worker", lease_expires_at=Now())
    assert caller.post("/v1/runs", REFUND, key="k2").status_code == 429


def test_runs_that_wait_do_not_count_against_the_limit(caller, acme):
    acme.open_runs = 1
    acme.save()
    caller.post("/v1/runs", REFUND, key="k1")
    AgentRun.objects.update(status=RunStatus.WAITING_FOR_APPROVAL)
    assert caller.post("/v1/runs", REFUND, key="k2").status_code == 201


def test_a_dedupe_hit_and_a_replay_need_no_room(caller, acme):
    body = REFUND | {"dedupe_key": "A-1002"}
    caller.post("/v1/runs", body, key="k1")
    acme.open_runs = 0
    acme.save()
    assert caller.post("/v1/runs", body, key="k1").status_code == 201
    assert caller.post("/v1/runs", body, key="k2").status_code == 200
