import pytest

from agentops.kernel.ids import show, uuid7
from agentops.tenancy.models import Membership
from approvals import seen
from approvals.models import Approval, Decision
from approvals.states import ApprovalStatus
from operations.states import OperationStatus


@pytest.fixture
def run(acme, a_run):
    return a_run(acme)


@pytest.fixture
def asked(run, a_refund):
    """An open question to people, and the paths that answer it."""
    _, approval = a_refund(run)
    return approval


def answer_to(approval: Approval, **more: str) -> dict[str, str]:
    return {"approval_id": str(approval), "proposal_digest": approval.proposal_digest, **more}


def status_of(approval: Approval) -> tuple[str, str]:
    approval.refresh_from_db()
    approval.operation.refresh_from_db()
    return approval.status, approval.operation.status


OPEN = (ApprovalStatus.REQUESTED, OperationStatus.PENDING)


def test_an_approval_has_every_field_of_the_contract(caller, run, asked):
    page = caller.get(f"/v1/runs/{run}/approvals").json()
    shown = page["items"][0]
    assert page["next_cursor"] is None
    assert shown.pop("expires_at").endswith("Z")
    assert shown == {
        "approval_id": str(asked),
        "run_id": str(run),
        "operation_id": str(asked.operation),
        "status": "requested",
        "proposal": {
            "action": "refund.create",
            "target": "order:A-1002",
            "fields": [{"name": "refunded", "before": 0, "after": 48900}],
            "amount_minor": 48900,
            "currency": "EUR",
            "reasons": [{"code": "refund.limit", "text": "Above the limit."}],
            "warnings": [],
            "risk": "elevated",
        },
        "proposal_digest": asked.proposal_digest,
        "required": 1,
        "decisions": [],
    }


def test_a_yes_answers_with_the_approval_and_frees_the_operation(reviewer, run, asked):
    answer = reviewer.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked, reason="Photo seen."))
    shown = answer.json()
    assert answer.status_code == 200
    assert shown["status"] == "approved"
    assert [
        (each["reviewer"], each["verdict"], each["reason"], each["channel"]) for each in shown["decisions"]
    ] == [("rosa", "approve", "Photo seen.", "rest")]
    assert shown["decisions"][0]["decided_at"].endswith("Z")
    decision = Decision.objects.get()
    assert seen.seen_sheet(decision) == shown["proposal"]  # what its JSON has shown is what is kept
    assert decision.seen_sheet_digest == seen.digest_of(shown["proposal"])
    assert status_of(asked) == (ApprovalStatus.APPROVED, OperationStatus.APPROVED)


def test_a_yes_needs_no_comment(reviewer, run, asked):
    assert reviewer.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked)).status_code == 200


def test_a_no_carries_its_reason_on(reviewer, run, asked):
    answer = reviewer.post(f"/v1/runs/{run}/approvals/reject", answer_to(asked, reason="No photo."))
    assert answer.status_code == 200
    assert answer.json()["status"] == "rejected"
    assert status_of(asked) == (ApprovalStatus.REJECTED, OperationStatus.REJECTED)
    assert asked.operation.error_detail == "No photo."


@pytest.mark.parametrize("reason", [{}, {"reason": ""}, {"reason": "  "}])
def test_a_no_without_a_reason_is_refused(reviewer, run, asked, reason):
    answer = reviewer.post(f"/v1/runs/{run}/approvals/reject", answer_to(asked, **reason))
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/reason"]
    assert status_of(asked) == OPEN


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_token_without_the_scope_decides_nothing(caller, run, asked, verb):
    answer = caller.post(f"/v1/runs/{run}/approvals/{verb}", answer_to(asked, reason="x"))
    assert answer.status_code == 403
    assert answer.json()["code"] == "missing_scope"
    assert status_of(asked) == OPEN


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_token_that_is_bound_to_nobody_decides_nothing(acme, caller_of, run, asked, verb):
    unbound = caller_of(acme, "approvals:decide")
    answer = unbound.post(f"/v1/runs/{run}/approvals/{verb}", answer_to(asked, reason="x"))
    assert answer.status_code == 403
    assert answer.json()["code"] == "token_not_bound"
    assert status_of(asked) == OPEN


def test_above_the_own_limit_is_refused_and_says_who_can(acme, person, caller_of, run, asked):
    person(acme, "lena", Membership.Role.LEAD, limit_minor=200_000)
    small = caller_of(acme, "approvals:decide", person=person(acme, "rosa", limit_minor=20_000))
    answer = small.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked))
    assert answer.status_code == 403
    assert answer.json()["code"] == "over_limit"
    assert "Lena" in answer.json()["detail"]
    assert status_of(asked) == OPEN


def test_rejecting_needs_no_limit(acme, person, caller_of, run, asked):
    small = caller_of(acme, "approvals:decide", person=person(acme, "rosa"))
    answer = small.post(f"/v1/runs/{run}/approvals/reject", answer_to(asked, reason="No."))
    assert answer.status_code == 200


def test_a_person_without_the_right_decides_nothing(acme, person, caller_of, run, asked):
    engineer = caller_of(acme, "approvals:decide", person=person(acme, "emil", Membership.Role.ENGINEER))
    answer = engineer.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked))
    assert (answer.status_code, answer.json()["code"]) == (403, "no_right")
    assert status_of(asked) == OPEN


def test_the_second_decision_is_told_who_was_first(acme, person, caller_of, reviewer, run, asked):
    other = caller_of(acme, "approvals:decide", person=person(acme, "lena", limit_minor=200_000))
    reviewer.post(f"/v1/runs/{run}/approvals/reject", answer_to(asked, reason="No."))
    answer = other.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked))
    problem = answer.json()
    assert answer.status_code == 409
    assert problem["code"] == "already_decided"
    assert (problem["decided_by"], problem["verdict"]) == ("Rosa", "reject")
    assert problem["status"] == 409
    assert Decision.objects.count() == 1


def test_a_decision_after_a_cancel_is_refused(caller, reviewer, run, asked):
    caller.post(f"/v1/runs/{run}/cancel")
    answer = reviewer.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked))
    assert answer.status_code == 409
    assert not Decision.objects.exists()


def test_another_digest_decides_nothing(reviewer, run, asked):
    body = answer_to(asked) | {"proposal_digest": "c1:proposal:" + "0" * 64}
    answer = reviewer.post(f"/v1/runs/{run}/approvals/approve", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "digest_mismatch")
    assert status_of(asked) == OPEN


@pytest.mark.parametrize("missing", ["approval_id", "proposal_digest"])
def test_a_decision_names_the_proposal_and_its_digest(reviewer, run, asked, missing):
    body = {name: value for name, value in answer_to(asked).items() if name != missing}
    answer = reviewer.post(f"/v1/runs/{run}/approvals/approve", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/{missing}"


def test_an_approval_of_another_run_or_of_nobody_is_not_there(reviewer, acme, a_run, run, asked):
    other = a_run(acme)
    assert reviewer.post(f"/v1/runs/{other}/approvals/approve", answer_to(asked)).status_code == 404
    for unknown in (show("apr", uuid7()), "apr_x", str(asked.operation)):
        body = answer_to(asked) | {"approval_id": unknown}
        assert reviewer.post(f"/v1/runs/{run}/approvals/approve", body).status_code == 404
    assert status_of(asked) == OPEN


def test_another_tenants_reviewer_finds_nothing(globex, person, caller_of, run, asked):
    gita = caller_of(
        globex, "approvals:read", "approvals:decide", person=person(globex, "gita", limit_minor=10**6)
    )
    assert gita.get(f"/v1/runs/{run}/approvals").status_code == 404
    assert gita.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked)).status_code == 404
    assert status_of(asked) == OPEN


def test_approvals_are_listed_oldest_first_by_pages(caller, run, a_refund):
    made = [str(a_refund(run, f"A-{number}")[1]) for number in range(5)]
    seen, cursor = [], ""
    for _ in range(3):
        page = caller.get(f"/v1/runs/{run}/approvals?limit=2&cursor={cursor}").json()
        seen += [item["approval_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == made
    assert cursor is None


@pytest.mark.parametrize(
    ("query", "status"), [("limit=0", 422), ("limit=x", 422), ("limit=201", 422), ("cursor=x", 400)]
)
def test_a_page_that_cannot_be_is_refused(caller, run, query, status):
    answer = caller.get(f"/v1/runs/{run}/approvals?{query}")
    assert answer.status_code == status
    assert answer["Content-Type"] == "application/problem+json"


def test_warnings_are_told_in_words_with_the_operation_they_speak_of(caller, run, a_refund, acme, a_run):
    """A second operation on the same order, by policy's own eyes."""
    from django.db import transaction

    from agentops.audit.entries import SYSTEM
    from approvals.policy import evaluate
    from approvals.services import submit
    from operations.connectors.base import Facts
    from operations.services import intend, propose
    from runs.models import AgentRun

    first, _ = a_refund(a_run(acme))
    params = {
        "charge": "ch_1",
        "order": "A-1002",
        "line": "2",
        "amount_minor": 100,
        "currency": "EUR",
        "reason": "other",
    }
    intended = intend(run, "refund.create", target="order:A-1002", params=params, reference="A-1002/2")
    verdict = evaluate(run, intended)
    with transaction.atomic():
        locked = AgentRun.objects.select_for_update().get(pk=run.pk)
        submit(
            propose(locked, "turn-1/call-0", intended, SYSTEM, may_ask_again=bool).locked,
            verdict,
            Facts(),
            SYSTEM,
        )
    warning = caller.get(f"/v1/runs/{run}").json()["pending_approvals"][0]["proposal"]["warnings"][0]
    assert set(warning) == {"code", "text", "operation_id"}
    assert (warning["code"], warning["operation_id"]) == ("same_target", str(first))
    assert "refund of €489.00" in warning["text"]


def test_a_question_whose_time_is_over_has_expired_whether_or_not_a_worker_lives(
    caller, run, asked, move_clock
):
    move_clock(24 * 3600 + 1)
    assert caller.get(f"/v1/runs/{run}/approvals").json()["items"][0]["status"] == "expired"
    assert caller.get(f"/v1/runs/{run}").json()["pending_approvals"] == []
    assert status_of(asked) == OPEN  # nobody has come by to write it down


def test_what_is_asked_again_says_why_and_what_is_otherwise(acme, person, reviewer, caller, run, asked):
    from approvals.services import revoke

    reviewer.post(f"/v1/runs/{run}/approvals/approve", answer_to(asked))
    lena = person(acme, "lena", limit_minor=200_000)
    revoke(acme.id, asked.id, reviewer=lena, reason="Wait.", channel="admin")
    first, second = caller.get(f"/v1/runs/{run}/approvals").json()["items"]
    assert (first["status"], second["status"]) == ("revoked", "requested")
    told = [warning for warning in second["proposal"]["warnings"] if warning["code"] == "asked_again"]
    assert told[0]["text"].startswith("A yes was taken back before anything was sent.")
