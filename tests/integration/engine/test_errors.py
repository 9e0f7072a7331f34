"""Errors: who is told what. A tool's goes to the model, the loop's own ends the run, the traceback goes to the log alone."""

import json

import pytest

from agentops.engine import agent_loop
from agentops.sdk import Agent, Call, Reply
from agentops.sdk.agents import agent
from runs.models import Step
from tests.stage import answer, story


def told(run, type):
    return [data for each, data in story(run) if each == type]


def logged(caplog, event: str) -> dict:
    (line,) = [
        record.msg
        for record in caplog.records
        if isinstance(record.msg, dict) and record.msg["event"] == event
    ]
    return line


def scripted(test_agent, *replies: Reply) -> str:
    """An agent that says these in order, then the last call's error or result as JSON; its tool adds one."""
    tools = agent(test_agent(lambda ctx: "done")).tools

    def script(conversation):
        turn = sum(message.role == "assistant" for message in conversation)
        if turn < len(replies):
            return replies[turn]
        results = [message.result for message in conversation if message.role == "tool"]
        return Reply(json.dumps(results))

    Agent("scripted", instructions="x", tools=tools, offline=script)
    return "scripted"


def test_an_error_of_the_loop_ends_the_run_with_its_class_and_a_masked_message(stage, monkeypatch, caplog):
    async def broken(*args, **more):
        raise LookupError("no route for anna.smith@example.com\nand here the prompt")

    monkeypatch.setattr(agent_loop.llm, "turn", broken)
    run = stage.carry_on(stage.start("Where is my order?"))
    assert (run.status, run.error_code) == ("failed", "agent_error")
    assert run.error_detail == "LookupError: no route for a•••@example.com"
    line = logged(caplog, "agent_loop_failed")
    assert line["run_id"] == run.public_id
    assert "in broken" in line["exception"]
    assert "anna.smith" not in line["exception"]


def test_an_error_of_a_tool_is_told_once_and_its_traceback_is_logged_under_the_run(stage, test_agent, caplog):
    tries = []

    def work(ctx):
        tries.append(1)
        raise ZeroDivisionError("4242 4242 4242 4242")

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert (run.status, len(tries)) == ("completed", 1)
    assert told(run, "tool.failed")[0]["code"] == "ZeroDivisionError"
    line = logged(caplog, "tool_failed")
    assert (line["run_id"], line["step"]) == (run.public_id, "turn-1/call-0")
    assert "in work" in line["exception"]
    assert "4242 4242" not in line["exception"]
    step = Step.objects.get(run_id=run.pk, key="turn-1/call-0")
    assert (step.status, step.error_class) == ("failed", "ZeroDivisionError")


def test_what_a_model_writes_wrong_goes_back_to_it_as_a_bounded_complaint(stage, test_agent):
    """Text that PostgreSQL cannot keep is met at the edge: refused where it is acted on, replaced where it is read."""
    wrong = [
        Call("try_it", {"number": "no number"}),
        Call("try_it", {"number": "x" * 60_000}),
        Call("try_it", {"number": 1} | {f"more{n}": n for n in range(500)}),
        Call("try_it", {"number": 1, "half": "\ud800", "nul": "\x00"}),
        Call("try\x00it", {"number": 1}),
        Call("try_it", {"number": 2}),
    ]
    said = Reply("Half \ud83d and nul \x00.", tuple(wrong))
    run = stage.carry_on(stage.start("x", scripted(test_agent, said)))
    assert run.status == "completed", run.error_detail
    *failed, last = json.loads(answer(run))
    assert last == {"said": "done"}
    codes = [each["error"]["code"] for each in failed]
    assert codes == ["invalid_arguments"] * 4 + ["unknown_tool"]
    assert all(len(each["error"]["message"]) <= 2_000 for each in failed)
    assert "number" in failed[0]["error"]["message"]
    assert "NUL" in failed[3]["error"]["message"]
    assert told(run, "assistant.message")[0]["text"] == "Half \ufffd and nul \ufffd."
    assert "\\u0000" not in json.dumps(story(run))


@pytest.mark.case("I-3")
def test_arguments_that_do_not_fit_are_told_to_the_model_and_each_try_counts(stage, test_agent):
    """Nothing is retried by the engine: each refusal is one completed step, and the third proposal goes on."""
    from typing import Annotated

    from pydantic import Field

    from agentops.sdk import Receipt, tool
    from tests import factories

    factories.policy(stage.tenant, "order.cancel", factories.ASK)
    order = stage.order()
    tried = []

    @tool(proposes="order.cancel")
    def cancel(ctx, order: str, days: Annotated[int, Field(ge=0)]) -> Receipt:
        """Cancel an order."""
        tried.append(days)
        return ctx.operation("order.cancel", target=f"order:{order}", params={"order": order}, reference="1")

    asked = [{"order": order["id"]}, {"order": order["id"], "days": -5}, {"order": order["id"], "days": 1}]

    def script(conversation):
        results = [message for message in conversation if message.role == "tool"]
        return Reply("", (Call("cancel", asked[len(results)]),)) if len(results) < 3 else Reply("Done.")

    test_agent(lambda ctx: 1)
    Agent("wrong-twice", instructions="x", tools=[cancel], offline=script)
    run = stage.start("x", "wrong-twice")
    stage.until_asked(run)
    failed = told(run, "tool.failed")
    assert [each["code"] for each in failed] == ["invalid_arguments"] * 2
    assert "days" in failed[0]["message"]
    assert "greater than or equal to 0" in failed[1]["message"]
    row = type(run).objects.get(pk=run.pk)
    assert (tried, row.steps_taken) == (
        [1],
        5,
    )  # three turns and two refused calls; the third call is under way
    assert [step.attempt for step in Step.objects.filter(run_id=run.pk)] == [1] * 5


@pytest.mark.case("I-4")
def test_a_question_to_a_person_is_no_failure_of_the_tool_that_asks(stage, test_agent):
    """A harmless write, then 'needs approval': written once, parked, no try counted, in this life and after the answer."""
    from approvals.models import Approval
    from tests import factories

    factories.policy(stage.tenant, "note.add", factories.ASK)
    wrote = []

    def work(ctx):
        ctx.step("write", lambda step: wrote.append(step.id) or len(wrote))
        try:
            receipt = ctx.operation(
                "note.add", target=f"notes:{stage.tenant.slug}", params={"text": "x"}, reference="1"
            )
        except Exception:  # an author's catch-all must not swallow the wait
            return "caught"
        return receipt.provider_ref

    run = stage.start("x", test_agent(work, proposes="note.add"))
    stage.until_asked(run)
    row = type(run).objects.get(pk=run.pk)
    assert (row.status, row.blocked_on, row.crash_count, row.lease_owner) == (
        "waiting_for_approval",
        ["approval"],
        0,
        None,
    )
    stage.decide(Approval.objects.get(), stage.reviewer())
    run = stage.carry_on(run)
    assert answer(run) == run.operations.get().provider_ref
    assert len(wrote) == 1
    assert told(run, "tool.failed") == []
    assert [data["attempt"] for data in told(run, "tool.started")] == [1]
