from agentops.tenancy.models import Membership
from agentops.tenancy.principals import authenticate
from approvals.states import ApprovalStatus, Outcome
from operations.states import OperationStatus
from runs.states import RunStatus


def test_cancelling_what_has_no_open_effect_ends_it_at_once(caller, acme, a_run):
    run = a_run(acme)
    answer = caller.post(f"/v1/runs/{run}/cancel", {"reason": "Called off."})
    assert answer.status_code == 200
    assert answer.json() == {
        "run_id": str(run),
        "status": "cancelled",
        "requested_by": authenticate(caller.token, "rest").name,
        "reason": "Called off.",
        "effects": [],
    }
    shown = caller.get(f"/v1/runs/{run}").json()
    assert (shown["status"], shown["error"]) == (
        "cancelled",
        {"code": "cancelled", "detail": "Called off."},
    )


def test_what_was_not_sent_never_will_be_and_the_question_is_withdrawn(caller, acme, a_run, a_refund):
    run = a_run(acme)
    operation, approval = a_refund(run)
    answer = caller.post(f"/v1/runs/{run}/cancel")
    assert answer.status_code == 200
    assert answer.json()["effects"] == [
        {
            "operation_id": str(operation),
            "action": "refund.create",
            "target": "order:A-1002",
            "outcome": "not_sent",
        }
    ]
    operation.refresh_from_db()
    approval.refresh_from_db()
    assert operation.status == OperationStatus.CANCELLED
    assert approval.status == ApprovalStatus.WITHDRAWN


def test_while_an_effect_is_open_the_answer_is_202(caller, acme, a_run, a_refund, sent):
    run = a_run(acme)
    sent(a_refund(run, outcome=Outcome.ALLOW)[0])
    answer = caller.post(f"/v1/runs/{run}/cancel")
    assert answer.status_code == 202
    assert answer.json()["cancelling"] is True
    assert answer.json()["status"] != RunStatus.CANCELLED
    assert [effect["outcome"] for effect in answer.json()["effects"]] == ["cannot_be_stopped"]


def test_a_settled_effect_stands_in_the_receipt_with_its_reference(caller, acme, a_run, a_refund, settled):
    run = a_run(acme)
    settled(a_refund(run, outcome=Outcome.ALLOW)[0])
    effects = caller.post(f"/v1/runs/{run}/cancel").json()["effects"]
    assert [(effect["outcome"], effect["provider_ref"]) for effect in effects] == [("settled", "re_1")]


def test_cancelling_what_has_ended_answers_409_with_its_receipt(caller, acme, a_run, a_refund):
    run = a_run(acme)
    a_refund(run)
    first = caller.post(f"/v1/runs/{run}/cancel", {"reason": "Called off."})
    again = caller.post(f"/v1/runs/{run}/cancel", {"reason": "Again."})
    assert again.status_code == 409
    assert again["Content-Type"] == "application/problem+json"
    assert again.json()["code"] == "already_ended"
    assert again.json()["receipt"] == first.json()


def test_the_body_may_be_left_out_but_not_be_wrong(caller, acme, a_run):
    run = a_run(acme)
    assert caller.post(f"/v1/runs/{run}/cancel", {"why": "x"}).status_code == 422
    assert caller.post(f"/v1/runs/{run}/cancel", {"reason": "x" * 501}).status_code == 422
    assert caller.post(f"/v1/runs/{run}/cancel", "{").status_code == 400
    assert caller.post(f"/v1/runs/{run}/cancel").status_code == 200


def test_a_token_without_the_scope_cancels_nothing(acme, caller_of, a_run):
    run = a_run(acme)
    answer = caller_of(acme, "runs:read").post(f"/v1/runs/{run}/cancel")
    assert answer.status_code == 403
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED


def test_a_persons_token_cancels_with_that_persons_right(acme, person, caller_of, a_run):
    run = a_run(acme)
    reviewer = person(acme, "rosa", Membership.Role.REVIEWER)
    engineer = person(acme, "emil", Membership.Role.ENGINEER)
    refused = caller_of(acme, "runs:write", person=reviewer).post(f"/v1/runs/{run}/cancel")
    assert refused.status_code == 403
    assert refused.json()["code"] == "no_right"
    assert caller_of(acme, "runs:write", person=engineer).post(f"/v1/runs/{run}/cancel").status_code == 200


def test_another_tenants_run_cannot_be_cancelled(acme, globex, caller_of, a_run):
    run = a_run(globex)
    assert caller_of(acme).post(f"/v1/runs/{run}/cancel").status_code == 404
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
