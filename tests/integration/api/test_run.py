import pytest

from agentops.audit.entries import SYSTEM
from agentops.kernel.ids import show, uuid7
from agentops.kernel.sealed import seal_json
from agentops.tenancy import vault
from approvals.states import Outcome
from runs.models import AgentRun
from runs.services import begin_ending, result_place

ALWAYS = {
    "run_id",
    "agent",
    "status",
    "blocked_on",
    "actor",
    "conversation_id",
    "release",
    "created_at",
    "started_at",
    "finished_at",
    "steps_taken",
    "cost_microusd",
    "budget_cents",
    "result",
    "error",
    "pending_approvals",
    "operations",
    "last_event_seq",
    "trace_id",
    "events_url",
    "status_url",
}


def test_a_queued_run_has_every_field_of_the_contract_and_no_other(caller, acme, a_run):
    run = a_run(acme)
    shown = caller.get(f"/v1/runs/{run}").json()
    assert set(shown) == ALWAYS
    assert shown | {"created_at": "", "release": ""} == {
        "run_id": str(run),
        "agent": "support-agent",
        "status": "queued",
        "blocked_on": [],
        "actor": "tenant:acme",
        "conversation_id": None,
        "release": "",
        "created_at": "",
        "started_at": None,
        "finished_at": None,
        "steps_taken": 0,
        "cost_microusd": 0,
        "budget_cents": shown["budget_cents"],
        "result": None,
        "error": None,
        "pending_approvals": [],
        "operations": [],
        "last_event_seq": 1,
        "trace_id": "0" * 31 + "1",
        "events_url": f"/v1/runs/{run}/events",
        "status_url": f"/v1/runs/{run}",
    }
    assert shown["created_at"].endswith("Z")
    assert shown["release"] == run.release.digest


def test_a_run_that_waits_for_a_person_shows_the_question_and_the_operation(caller, acme, a_run, a_refund):
    run = a_run(acme)
    operation, approval = a_refund(run)
    shown = caller.get(f"/v1/runs/{run}").json()
    assert [question["approval_id"] for question in shown["pending_approvals"]] == [str(approval)]
    assert [each["operation_id"] for each in shown["operations"]] == [str(operation)]
    assert shown["operations"][0]["status"] == "pending"


def test_operations_stand_oldest_first(caller, acme, a_run, a_refund):
    run = a_run(acme)
    made = [str(a_refund(run, f"A-{number}", Outcome.ALLOW)[0]) for number in range(4)]
    shown = caller.get(f"/v1/runs/{run}").json()
    assert [each["operation_id"] for each in shown["operations"]] == made


def test_an_operation_that_a_run_joined_stands_in_both_runs(caller, acme, a_run, a_refund):
    first, second = a_run(acme), a_run(acme)
    operation, _ = a_refund(first, outcome=Outcome.ALLOW)
    joined, _ = a_refund(second, outcome=Outcome.ALLOW)
    assert joined == operation
    for run in (first, second):
        shown = caller.get(f"/v1/runs/{run}").json()["operations"]
        assert [(each["operation_id"], each["run_id"]) for each in shown] == [(str(operation), str(first))]


def test_without_approvals_read_there_are_no_questions(acme, caller_of, a_run, a_refund):
    run = a_run(acme)
    a_refund(run)
    shown = caller_of(acme, "runs:read", "operations:read").get(f"/v1/runs/{run}").json()
    assert shown["pending_approvals"] == []
    assert len(shown["operations"]) == 1


def test_without_operations_read_there_are_no_receipts(acme, caller_of, a_run, a_refund, settled):
    run = a_run(acme)
    settled(a_refund(run, outcome=Outcome.ALLOW)[0])
    for scopes, has_receipt in (
        (["runs:read"], False),
        (["runs:read", "operations:read"], True),
    ):
        shown = caller_of(acme, *scopes).get(f"/v1/runs/{run}").json()["operations"][0]
        assert shown["status"] == "succeeded"
        assert (shown["receipt"] is not None) == has_receipt


def test_a_completed_run_shows_its_answer(caller, acme, a_run):
    run = a_run(acme)
    place, key = result_place(run.id), vault.opened(run.data_key_id)
    AgentRun.objects.update(sealed_result=seal_json(key, place, {"text": "退款已完成", "data": {"a": 1}}))
    answer = caller.get(f"/v1/runs/{run}")
    assert answer.json()["result"] == {"text": "退款已完成", "data": {"a": 1}}
    assert "退款已完成" in answer.content.decode()


def test_an_answer_without_more_has_only_its_text(caller, acme, a_run):
    run = a_run(acme)
    key = vault.opened(run.data_key_id)
    AgentRun.objects.update(sealed_result=seal_json(key, result_place(run.id), {"text": "Done."}))
    assert caller.get(f"/v1/runs/{run}").json()["result"] == {"text": "Done."}


@pytest.mark.parametrize(("ending", "word"), [("cancelled", "cancelling"), ("failed", "failing")])
def test_a_run_between_the_two_moves_of_its_end_says_so(
    caller, acme, a_run, a_refund, sent, settled, ending, word
):
    run = a_run(acme)
    operation, _ = a_refund(run, outcome=Outcome.ALLOW)
    sent(operation)
    run = begin_ending(AgentRun.objects.get(), ending, code="deadline", actor=SYSTEM, reason="Too late.")
    shown = caller.get(f"/v1/runs/{run}").json()
    assert shown["error"] == {"code": "deadline", "detail": "Too late."}
    assert set(shown) == ALWAYS | {word}
    assert shown[word] is True


def test_a_retry_names_the_run_whose_work_it_carries_on(caller, acme, a_run):
    old, new = a_run(acme), a_run(acme)
    AgentRun.objects.filter(pk=new.pk).update(retry_of=old)
    assert caller.get(f"/v1/runs/{new}").json()["retry_of"] == str(old)


def test_another_tenants_run_is_not_there(acme, globex, caller_of, a_run):
    run = a_run(globex)
    answer = caller_of(acme).get(f"/v1/runs/{run}")
    assert answer.status_code == 404
    assert caller_of(globex).get(f"/v1/runs/{run}").status_code == 200


@pytest.mark.parametrize("path", ["/v1/runs/{}", "/v1/runs/{}/approvals", "/v1/operations/{}"])
@pytest.mark.parametrize(
    "text",
    [
        "x",
        "run_",
        "run_" + "0" * 25,
        "run_" + "z" * 26,
        "op_" + "u" * 26,
        "RUN_" + "0" * 26,
        str(uuid7()),
        "%00",
    ],
)
def test_a_malformed_id_is_not_there(caller, path, text):
    answer = caller.get(path.format(text))
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_an_unknown_id_is_not_there(caller):
    assert caller.get(f"/v1/runs/{show('run', uuid7())}").status_code == 404
    assert caller.post(f"/v1/runs/{show('run', uuid7())}/cancel").status_code == 404


def test_a_page_of_a_run_costs_a_bounded_number_of_queries(
    caller, acme, a_run, a_refund, django_assert_max_num_queries
):
    run = a_run(acme)
    for number in range(6):
        a_refund(run, f"A-{number}")
    caller.get(f"/v1/runs/{run}")
    with django_assert_max_num_queries(6):
        caller.get(f"/v1/runs/{run}")
