"""A retry carries on: what was completed is read back, what took effect is inherited, what was withdrawn is asked anew."""

import threading

import pytest

from agentops.audit.entries import Actor
from agentops.engine import agent_loop
from agentops.engine.control import cancel_run
from agentops.engine.retry import retry_run
from agentops.kernel.problems import Conflict, NotYours
from agentops.llm.errors import ModelError
from operations.models import Operation
from runs.models import AgentRun
from tests.stage import LARGE, answer, story, together, types

EMIL = Actor("user:0", "cli")  # nobody that a test makes


def retry(stage, run):
    return retry_run(stage.tenant.id, run.id, actor=EMIL, reason="The cause is mended.")


def row_of(run) -> AgentRun:
    return AgentRun.objects.select_related("retry_of").get(pk=run.pk)


def turns_of(run) -> list[str]:
    return sorted(run.steps.filter(kind="model").values_list("key", flat=True))


def test_no_completed_turn_is_billed_again_and_no_effect_made_again(stage, monkeypatch):
    """The model fails for good in the turn after the refund; the retry asks it for that turn alone."""
    order = stage.order()
    turn, asked = agent_loop.llm.turn, []

    async def failing(*args, history, **more):
        asked.append(len(history))
        if len(stage.refunds(order)) == 1 and "mended" not in asked:
            raise ModelError("The key is no longer valid.", code="unauthorized")
        return await turn(*args, history=history, **more)

    monkeypatch.setattr(agent_loop.llm, "turn", failing)
    run = stage.carry_on(stage.ask_refund(order, budget_cents=7))
    assert (run.status, run.error_code) == ("failed", "model_unauthorized")
    done, spent = turns_of(run), run.spent_microusd
    asked[:] = ["mended"]
    receipt = retry(stage, run)
    assert (receipt.is_new, receipt.source, receipt.run.retry_of_id) == (True, run, run.pk)
    assert receipt.steps == run.steps.exclude(status="started").count()
    assert receipt.operations == [each.public_id for each in Operation.objects.order_by("id")]
    again = stage.carry_on(receipt.run)
    assert again.status == "completed"
    assert stage.refunds(order)[0]["id"] in answer(again)
    assert turns_of(again) == [f"turn-{len(done) + 1}"]
    assert len(asked) == 2
    assert len(stage.refunds(order)) == 1
    assert again.budget_microusd == run.budget_microusd - spent
    assert types(again)[0] == "run.created"
    assert story(again)[0][1]["retry_of"] == run.public_id
    assert "tool.requested" not in types(again)
    with pytest.raises(Conflict, match="has its answer"):
        retry(stage, again)
    with pytest.raises(Conflict, match=f"as {again.public_id} already"):
        retry(stage, run)


def test_a_proposal_that_was_withdrawn_with_its_run_is_asked_anew_and_made_once(stage):
    order = stage.order(LARGE)
    run = stage.ask_refund(order, dedupe_key="ticket-9")
    first = stage.until_asked(run)
    cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="By mistake.")
    again = retry(stage, run).run
    assert (again.dedupe_key, again.actor) == ("ticket-9", run.actor)
    second = stage.until_asked(again)
    assert second.operation.previous_id == first.operation_id
    stage.decide(second, stage.reviewer())
    assert stage.carry_on(again).status == "completed"
    assert len(stage.refunds(order)) == 1
    assert turns_of(again)[0] != "turn-1"


def test_who_retries_a_run_has_asked_for_what_it_proposes_and_so_has_who_retries_that(stage):
    first, second, reviewer = (stage.reviewer() for _ in range(3))
    run = stage.ask_refund(stage.order(LARGE))
    for person in (first, second):
        stage.until_asked(run)
        cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="By mistake.")
        by_person = {"actor": Actor(f"user:{person.pk}", "cli"), "reason": "It was none."}
        run = retry_run(stage.tenant.id, run.id, **by_person).run
    approval = stage.until_asked(run)
    for person in (first, second):
        with pytest.raises(NotYours) as refused:
            stage.decide(approval, person)
        assert refused.value.code == "own_request"
    stage.decide(approval, reviewer)
    assert stage.carry_on(run).status == "completed"


def test_a_call_that_may_have_happened_is_not_repeated_by_a_retry_either(stage, test_agent):
    """Undeclared and interrupted in the run that was cancelled: the retry tells the model that, and calls nothing."""
    entered, calls = threading.Event(), []

    def work(ctx):
        calls.append(1)
        entered.set()
        threading.Event().wait(0.5)

    run = stage.start("x", test_agent(work, timeout_seconds=10.0))
    stage.driver()
    assert entered.wait(10)
    cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="x")
    again = stage.carry_on(retry(stage, run).run)
    assert (calls, again.status) == ([1], "completed")
    assert "may or may not have happened" in answer(again)


def test_the_same_call_three_times_parks_with_that_reason_and_a_person_lets_it_go_on_or_ends_it(
    stage, test_agent
):
    name = test_agent(lambda ctx: "again", calls=7, same=True)
    run, other = stage.start("x", name), stage.start("y", name)

    def parked(row):
        return row.blocked_on == ["operator"]

    for each in (run, other):
        stage.carry_on(each, parked)
    row = row_of(run)
    assert (row.status, row.error_code) == ("running", "repeated_call")
    assert story(run)[-1] == (
        "run.paused",
        {"why": "operator", "code": row.error_code, "detail": row.error_detail},
    )
    receipt = retry(stage, run)
    assert (receipt.is_new, receipt.run.pk) == (False, run.pk)
    row = stage.carry_on(run, lambda row: parked(row) and row.steps_taken > 6)
    assert len(turns_of(row)) == 6, "three more of the same, then it is asked again"
    retry(stage, run)
    row = stage.carry_on(run)
    assert (row.status, row.error_code) == ("completed", "")
    ended = cancel_run(stage.tenant.id, other.id, actor=EMIL, reason="It goes round.").run
    assert (ended.status, ended.error_code) == ("cancelled", "repeated_call")
    again = retry(stage, other).run
    again = stage.carry_on(again, lambda row: parked(row) or row.is_terminal)
    assert len(turns_of(again)) == 3, "whoever retries it lets it go on, as with one that has not ended"


def test_what_has_not_stopped_is_not_retried_and_two_retries_at_once_are_one(stage):
    run = stage.start("Where is order A-1001?")
    with pytest.raises(Conflict, match="has not stopped"):
        retry(stage, run)
    cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="x")
    outcomes = together(*[lambda: retry(stage, run)] * 3)
    assert sum(not isinstance(each, Exception) for each in outcomes) == 1
    assert all(isinstance(each, Conflict) for each in outcomes if isinstance(each, Exception))
    assert AgentRun.objects.filter(retry_of=run).count() == 1
