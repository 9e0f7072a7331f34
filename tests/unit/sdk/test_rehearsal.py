"""The rehearsal context keeps the promises of the engine's that a tool can notice."""

import pytest
from pydantic import BaseModel

from agentops.sdk import (
    Agent,
    Call,
    DuplicateStep,
    JournalMismatch,
    Limits,
    Reply,
    Retryable,
    StepContext,
    Terminal,
    ToolContext,
    tool,
)
from agentops.sdk.agents import separate_registry
from agentops.sdk.testing import Rehearsal, rehearse, scripted


def test_a_completed_step_is_answered_from_the_journal():
    ctx, done = Rehearsal(), []

    def work(step: StepContext, what: str) -> str:
        done.append(step.id)
        return what.upper()

    assert ctx.step("shout", work, "hello") == "HELLO"
    ctx.begin(ctx.call_id)
    assert ctx.step("shout", work, "hello") == "HELLO"
    assert done == ["run_rehearsal/turn-1/call-0/shout"]


def test_a_name_used_twice_needs_a_key():
    ctx = Rehearsal()
    ctx.step("count", lambda step, n: n, 1)
    with pytest.raises(DuplicateStep):
        ctx.step("count", lambda step, n: n, 2)
    assert ctx.step("count", lambda step, n: n, 2, key="second") == 2


def test_a_replay_with_other_arguments_is_refused():
    ctx = Rehearsal()
    ctx.step("count", lambda step, n: n, 1)
    ctx.begin(ctx.call_id)
    with pytest.raises(JournalMismatch):
        ctx.step("count", lambda step, n: n, 2)


class Said(BaseModel):
    text: str


def an_agent(work, *, calls: int = 1, limits: Limits | None = None, **declared) -> Agent:
    """An agent whose one tool is `work(ctx)`, called that often; it tells the last result."""

    @tool(**(declared or {"repeatable": True}))
    def act(ctx: ToolContext, number: int) -> Said:
        """Do what the test wants."""
        return Said(text=str(work(ctx)))

    def script(conversation):
        results = [message for message in conversation if message.role == "tool"]
        if len(results) < calls:
            return Reply("", (Call("act", {"number": len(results)}),))
        return Reply(results[-1].result["text"] if results[-1].ok else results[-1].result["error"]["code"])

    with separate_registry():
        return Agent("rehearsed", instructions="x", tools=[act], offline=script, limits=limits or Limits())


@pytest.mark.parametrize(("moment", "bodies"), [("before", 1), ("during", 2), ("after", 1)])
def test_a_step_is_done_again_only_if_it_was_not_recorded(moment, bodies):
    ctx, done = Rehearsal(), []

    def charge(step: StepContext) -> str:
        done.append(step.id)
        return "charged"

    ctx.die(**{moment: "charge"})
    told = rehearse(an_agent(lambda ctx: ctx.step("charge", charge)), "x", ctx)
    assert (told[-1].text, ctx.lives, ctx.turns) == ("charged", 2, 2)
    assert done == ["run_rehearsal/turn-1/call-0/charge"] * bodies


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_an_operation_and_a_child_are_continued_never_doubled(moment):
    def work(ctx):
        receipt = ctx.operation("note.add", target="notes:acme", params={"text": "x"}, reference="1")
        return receipt.provider_ref + ctx.run("helper", "q").text

    ctx = Rehearsal()
    ctx.die(**{moment: "note.add"})
    ctx.die(**{moment: "run-helper"})
    told = rehearse(an_agent(work, proposes="note.add"), "x", ctx)
    assert told[-1].text == "ref_1helper: q"
    assert (len(ctx.proposals), len(ctx.children), ctx.lives) == (1, 1, 3)


def test_a_replay_that_proposes_something_else_is_refused():
    amounts = iter([1, 2])

    def work(ctx):
        return ctx.operation(
            "a.b", target="x:1", params={"amount_minor": next(amounts)}, reference="1"
        ).status

    ctx = Rehearsal()
    ctx.die(during="a.b")
    assert rehearse(an_agent(work, proposes="a.b"), "x", ctx)[-1].text == "journal_mismatch"


def test_time_passes_only_when_it_is_told_to():
    def work(ctx):
        ctx.sleep(3_600)
        ctx.sleep(60)
        return "woke"

    ctx, agent = Rehearsal(), an_agent(work)
    rehearse(agent, "x", ctx)
    assert (ctx.status, ctx.blocked_on) == ("waiting", {"timer"})
    ctx.clock.advance(3_600)
    rehearse(agent, "x", ctx)
    assert ctx.status == "waiting"
    ctx.clock.advance(60)
    assert rehearse(agent, "x", ctx)[-1].text == "woke"
    assert (ctx.status, ctx.turns) == ("completed", 2)


def test_limits_are_ordinary_ends():
    ctx = Rehearsal()
    rehearse(an_agent(lambda ctx: 1, calls=9, limits=Limits(steps=4)), "x", ctx)
    assert (ctx.status, ctx.error_code) == ("failed", "step_limit")
    late = Rehearsal()
    agent = an_agent(lambda ctx: late.clock.advance(61), limits=Limits(deadline_seconds=60))
    rehearse(agent, "x", late)
    assert (late.status, late.error_code) == ("failed", "deadline")


def test_a_tool_that_declares_nothing_is_not_repeated_and_may_not_wait():
    ctx, done = Rehearsal(), []
    ctx.die(during="turn-1/call-0")
    declared = {"timeout_seconds": 5}
    assert rehearse(an_agent(lambda ctx: done.append(1), **declared), "x", ctx)[-1].text == "interrupted"
    assert done == [1]
    for wait in (lambda ctx: ctx.sleep(1), lambda ctx: ctx.run("helper", "q")):
        assert rehearse(an_agent(wait, **declared), "x", Rehearsal())[-1].text == "not_repeatable"


def test_a_tool_is_tried_again_where_it_says_so_and_an_end_is_told():
    tries = []

    def work(ctx):
        tries.append(ctx.clock.now)
        raise Retryable("busy", retry_after_seconds=30) if len(tries) < 3 else Terminal("no", code="refused")

    assert rehearse(an_agent(work), "x", Rehearsal())[-1].text == "refused"
    assert tries == [0, 30, 60]


def test_a_scripted_model_and_what_was_said_before():
    model = scripted(Reply("", (Call("act", {"number": 1}),)), Reply("done"))
    told = rehearse(an_agent(lambda ctx: 1), "x", Rehearsal(), model=model, earlier=[("hello", "hi")])
    assert [message.text for message in told] == ["hello", "hi", "x", "", "", "done"]


def test_a_name_that_the_journal_cannot_hold_is_refused_before_anything_is_done():
    ctx, done = Rehearsal(), []
    for name in ("x" * 161, "retry-1"):
        with pytest.raises(Terminal) as refused:
            ctx.step(name, lambda step: done.append(1))
        assert (refused.value.code, done) == ("step_name", [])
