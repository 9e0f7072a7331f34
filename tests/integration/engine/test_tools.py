"""Tool calls: what completed is read back, what was interrupted is told as such, what failed is told to the model."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from agentops.engine import agent_loop, live
from agentops.engine.ledger import RunLedger
from agentops.kernel.clock import now
from agentops.sdk import Agent, Call, InvalidResult, Limits, Reply, Retryable, Terminal, tool
from agentops.sdk.tools import MAX_RESULT_CHARS
from operations.models import Operation
from runs.models import Step
from tests.stage import answer, eventually, story, types


def told(run, type):
    return [data for each, data in story(run) if each == type]


def test_a_step_is_done_once_whatever_becomes_of_its_tool(stage, test_agent, monkeypatch):
    """The tool dies behind the step; in the next life the step answers from the journal."""
    done, lives = [], []

    def work(ctx):
        lives.append(ctx.call_id)
        value = ctx.step("note", lambda step, text: done.append((step.id, text)) or {"n": len(done)}, "hello")
        if len(lives) == 1:
            raise Retryable("Not now.", retry_after_seconds=0.01)
        return value["n"]

    run = stage.carry_on(stage.start("x", test_agent(work, repeatable=True)))
    assert answer(run) == "1"
    assert done == [(f"{run.public_id}/turn-1/call-0/note", "hello")]
    assert lives == [f"{run.public_id}/turn-1/call-0"] * 2


def test_a_step_whose_result_is_too_long_is_not_kept(stage, test_agent):
    run = stage.start(
        "x", test_agent(lambda ctx: ctx.step("all", lambda step: "x" * MAX_RESULT_CHARS), reads=True)
    )
    assert "longer than" in answer(stage.carry_on(run))
    assert told(run, "tool.failed")[0]["code"] == InvalidResult.code
    assert not Step.objects.filter(run_id=run.pk, kind="step").exists()


def test_a_step_that_is_replayed_with_other_arguments_ends_the_run(stage, test_agent):
    texts = iter(["one", "two"])

    def work(ctx):
        ctx.step("note", lambda step, text: text, next(texts))
        raise Retryable("Not now.", retry_after_seconds=0.01)

    run = stage.carry_on(stage.start("x", test_agent(work, repeatable=True)))
    assert (run.status, run.error_code) == ("failed", "journal_mismatch")


def test_one_name_for_two_steps_is_told_to_the_model(stage, test_agent):
    def work(ctx):
        ctx.step("note", lambda step: 1)
        ctx.step("note", lambda step: 2)

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert "note" in answer(run)
    assert told(run, "tool.failed")[0]["code"] == "duplicate_step"


@pytest.mark.parametrize("name", ["x" * 161, "nul\x00", "half \ud800", "retry-1", "mail/retry-2"])
def test_a_name_that_the_journal_cannot_hold_is_refused_before_anything_is_done(stage, test_agent, name):
    done = []

    def work(ctx):
        with suppress(Terminal):
            ctx.operation("note.add", target="notes:acme", params={"text": "x"}, reference="1", key=name)
        ctx.step("mail", lambda step: done.append(1), key=name)

    run = stage.carry_on(stage.start("x", test_agent(work, proposes="note.add")))
    assert told(run, "tool.failed")[0]["code"] == "step_name"
    assert done == []
    assert not Operation.objects.exists()


def test_the_longest_name_has_its_place(stage, test_agent):
    run = stage.carry_on(
        stage.start("x", test_agent(lambda ctx: ctx.step("y" * 160, lambda step: 1), repeatable=True))
    )
    assert answer(run) == "1"


def test_a_failure_that_may_pass_is_tried_three_times_then_told(stage, test_agent):
    tries = []

    def work(ctx):
        tries.append(1)
        raise Retryable("The shop is closed.", retry_after_seconds=0.01)

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert len(tries) == 3
    assert answer(run) == "The shop is closed."


def test_a_terminal_failure_is_told_at_once(stage, test_agent):
    tries = []

    def work(ctx):
        tries.append(1)
        raise Terminal("There is none.", code="none")

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert (len(tries), answer(run), run.status) == (1, "There is none.", "completed")


def test_a_bug_of_a_tool_is_told_without_its_words(stage, test_agent):
    def work(ctx):
        raise ZeroDivisionError("secret-of-the-author")

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert "not known" in answer(run)
    assert told(run, "tool.failed")[0]["code"] == "ZeroDivisionError"
    assert "secret" not in str(story(run))


def test_a_tool_that_overruns_its_limit_is_left_behind_and_its_late_result_refused(stage, test_agent):
    leave = threading.Event()

    def work(ctx):
        leave.wait(10)
        ctx.progress("late")
        return "late"

    run = stage.carry_on(stage.start("x", test_agent(work, reads=True, timeout_seconds=0.2)))
    leave.set()
    assert "did not end within" in answer(run)
    time.sleep(0.1)
    assert types(run)[-1] == "run.completed"
    assert told(run, "tool.progress") == []


def test_an_undeclared_tool_that_was_interrupted_is_not_run_again(stage, test_agent, monkeypatch):
    """The worker dies inside it: another one tells the model that it may or may not have happened."""
    done, entered, leave = [], threading.Event(), threading.Event()

    def work(ctx):
        done.append(1)
        entered.set()
        leave.wait(10)

    run = stage.start("x", test_agent(work, timeout_seconds=20.0))
    first = stage.driver()
    assert entered.wait(10)
    assert Step.objects.get(run_id=run.pk, key="turn-1/call-0").status == "started"
    first.stop(0)
    stage.drivers.clear()
    run = stage.carry_on(run)
    leave.set()
    assert len(done) == 1
    assert "may or may not have happened" in answer(run)
    assert told(run, "tool.failed")[0]["code"] == "interrupted"


def test_a_read_that_was_interrupted_is_run_again(stage, test_agent):
    done, entered, leave = [], threading.Event(), threading.Event()

    def work(ctx):
        done.append(1)
        entered.set()
        leave.wait(10)
        return "read"

    run = stage.start("x", test_agent(work, reads=True))
    first = stage.driver()
    assert entered.wait(10)
    first.stop(0)
    stage.drivers.clear()
    leave.set()
    run = stage.carry_on(run)
    assert (len(done), answer(run)) == (2, "read")


def test_a_tool_that_sleeps_holds_no_lease_and_sleeps_only_for_the_rest(stage, test_agent):
    lives = []

    def work(ctx):
        lives.append(1)
        ctx.sleep(1.0)
        return "woke"

    run = stage.start("x", test_agent(work))
    parked = stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    assert (parked.status, parked.lease_owner) == ("running", None)
    run = stage.carry_on(run)
    assert (answer(run), len(lives)) == ("woke", 2)


@pytest.mark.parametrize("seconds", [float("nan"), -5.0])
def test_a_wait_that_is_none_is_no_wait_and_ends_no_run(stage, test_agent, monkeypatch, seconds):
    waits, sleep = [], asyncio.sleep

    async def slept(wanted):
        waits.append(wanted)
        await sleep(0)

    def work(ctx):
        raise Retryable("Not now.", retry_after_seconds=seconds)

    run = stage.start("x", test_agent(work))
    monkeypatch.setattr(agent_loop.asyncio, "sleep", slept)
    assert answer(stage.carry_on(run)) == "Not now."
    assert [wait for wait in waits if not wait >= 0.0] == []


class Waited(BaseModel):
    seconds: int


def test_a_call_that_takes_its_time_does_not_put_off_the_timer_of_another(stage, test_agent, monkeypatch):
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])

    def wait(ctx, seconds: int) -> Waited:
        """Sleep, or work for as long while the other one sleeps."""
        if seconds == 3_600:
            ctx.sleep(seconds)
        eventually(
            lambda: [run for run in stage.drivers[0].live.values() if run.timer], "the other one sleeps"
        )
        passed[0] = seconds
        return Waited(seconds=seconds)

    def script(conversation):
        return Reply("", (Call("wait", {"seconds": 3_600}), Call("wait", {"seconds": 100})))

    test_agent(lambda ctx: 1)
    Agent("two", instructions="x", tools=[tool(reads=True, timeout_seconds=60.0)(wait)], offline=script)
    monkeypatch.setattr(live, "time", clock)
    run = stage.carry_on(stage.start("x", "two"), lambda row: row.blocked_on == ["timer"])
    assert run.ready_at - now() < timedelta(seconds=3_550)


def test_calls_of_one_turn_run_side_by_side_and_are_told_in_their_order(stage):
    from agentops.sdk.agents import separate_registry

    class Told(BaseModel):
        n: int

    both = threading.Barrier(2)

    @tool(reads=True)
    def meet(ctx, n: int) -> Told:
        """Wait for the other one."""
        both.wait(5)
        return Told(n=n)

    def script(conversation):
        results = [message.result["n"] for message in conversation if message.role == "tool"]
        return Reply(str(results)) if results else Reply("", (Call("meet", {"n": 1}), Call("meet", {"n": 2})))

    with separate_registry():
        Agent("pair", instructions="x", tools=[meet], offline=script)
        run = stage.carry_on(stage.start("x", "pair"))
    assert answer(run) == "[1, 2]"


@pytest.mark.parametrize(
    ("call", "code"),
    [(("nothing", {}), "unknown_tool"), (("try_it", {"number": "x"}), "invalid_arguments")],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(stage, test_agent, call, code):
    from agentops.sdk.agents import agent

    tools = agent(test_agent(lambda ctx: 1)).tools

    def script(conversation):
        results = [message for message in conversation if message.role == "tool"]
        return Reply(results[0].result["error"]["code"]) if results else Reply("", (Call(*call),))

    Agent("wrong", instructions="x", tools=tools, offline=script)
    run = stage.carry_on(stage.start("x", "wrong"))
    assert (run.status, answer(run)) == ("completed", code)


def test_the_same_call_three_times_in_a_row_waits_for_an_operator(stage, test_agent):
    run = stage.start("x", test_agent(lambda ctx: "same", calls=9, same=True))
    run = stage.carry_on(run, lambda row: row.blocked_on == ["operator"])
    assert (run.status, run.lease_owner) == ("running", None)
    assert len(told(run, "tool.completed")) == 3


def test_the_step_limit_is_an_explained_end(stage, test_agent):
    run = stage.carry_on(stage.start("x", test_agent(lambda ctx: 1, calls=9, limits=Limits(steps=4))))
    assert (run.status, run.error_code, run.steps_taken) == ("failed", "step_limit", 4)
    assert types(run)[-1] == "run.failed"


def test_an_action_that_the_tool_does_not_declare_is_refused(stage, test_agent):
    def work(ctx):
        ctx.operation("note.add", target=f"notes:{stage.tenant.slug}", params={"text": "x"}, reference="1")

    run = stage.carry_on(stage.start("x", test_agent(work, reads=True)))
    assert told(run, "tool.failed")[0]["code"] == "undeclared_action"
    assert not run.operations.exists()


def test_a_replay_that_asks_for_something_else_is_refused_and_only_the_first_is_sent(
    stage, test_agent, monkeypatch
):
    """INHERIT: a successor continues the committed operation and never derives another one in its place."""
    texts, checkpoint = iter(["first", "second"]), RunLedger.checkpoint
    lost = []

    def work(ctx):
        text = next(texts)
        ctx.operation(
            "order.cancel",
            target=f"order:{orders[text]['id']}",
            params={"order": orders[text]["id"]},
            reference=text,
        )

    async def losing(self, run, steps=(), events=(), ending=None):
        if steps and steps[0].key == "turn-1/call-0" and not lost:
            lost.append(1)
            raise asyncio.CancelledError
        await checkpoint(self, run, steps, events, ending)

    orders = {"first": stage.order(), "second": stage.order()}
    from tests import factories

    factories.policy(stage.tenant, "order.cancel", factories.ALWAYS)
    monkeypatch.setattr(RunLedger, "checkpoint", losing)
    run = stage.carry_on(stage.start("x", test_agent(work, proposes="order.cancel")))
    assert lost
    assert (run.status, run.error_code) == ("failed", "journal_mismatch")
    assert len(stage.cancellations(orders["first"])) == 1
    assert stage.cancellations(orders["second"]) == []


def test_a_model_that_fails_for_a_moment_is_asked_again_and_the_turn_counts_once(stage, monkeypatch):
    from agentops import llm

    turn, tries = llm.turn, []

    async def flaky(*args, **more):
        tries.append(1)
        if len(tries) <= 2:
            raise llm.ModelRetryable("Busy.", code="busy", retry_after_seconds=0.01)
        return await turn(*args, **more)

    monkeypatch.setattr(agent_loop.llm, "turn", flaky)
    run = stage.carry_on(stage.start("Where is my order?"))
    assert run.status == "completed"
    assert [data["attempt"] for data in told(run, "assistant.message")] == [3]
    assert Step.objects.filter(run_id=run.pk, kind="model").count() == 1


def test_a_model_that_fails_for_good_ends_the_run_with_the_reason(stage, monkeypatch):
    from agentops import llm

    async def broken(*args, **more):
        raise llm.ModelTerminal("No such model.", code="not_found")

    monkeypatch.setattr(agent_loop.llm, "turn", broken)
    run = stage.carry_on(stage.start("Where is my order?"))
    assert (run.status, run.error_code, run.error_detail) == ("failed", "model_not_found", "No such model.")


def test_an_abandoned_call_writes_and_proposes_nothing_more(stage, test_agent):
    """Its run is still at work under the same lease, so only the call itself can be fenced."""
    leave, ended, raised = threading.Event(), threading.Event(), []

    def work(ctx):
        if ctx.call_id.endswith("turn-2/call-0"):
            leave.set()
            ended.wait(5)
            return "second"
        leave.wait(10)
        assert ctx.signal.is_set()
        for late in (
            lambda: ctx.progress("late"),
            lambda: ctx.step("late", lambda step: 1),
            lambda: ctx.operation(
                "note.add", target=f"notes:{stage.tenant.slug}", params={"text": "late"}, reference="1"
            ),
        ):
            try:
                late()
            except Exception as error:
                raised.append(type(error).__name__)
        ended.set()
        return "late"

    name = test_agent(work, calls=2, proposes="note.add", timeout_seconds=0.5)
    run = stage.carry_on(stage.start("x", name))
    assert raised == ["LeaseLost"] * 3
    assert answer(run) == "second"
    assert not run.operations.exists()
    assert told(run, "tool.progress") == []


def test_a_call_that_overruns_with_its_operation_on_the_way_waits_for_it(stage, test_agent):
    def work(ctx):
        receipt = ctx.operation(
            "note.add", target=f"notes:{stage.tenant.slug}", params={"text": "slow"}, reference="1"
        )
        return receipt.provider_ref

    stage.provider.fault("slow", times=1, seconds=1, door="shop")
    run = stage.carry_on(stage.start("x", test_agent(work, proposes="note.add", timeout_seconds=0.5)))
    (made,) = run.operations.all()
    assert (run.status, answer(run)) == ("completed", made.provider_ref)
    assert told(run, "tool.failed") == []
    notes = [each for each in stage.provider.books()["notes"] if each["operation_id"] == made.public_id]
    assert len(notes) == 1


def test_an_answer_does_not_end_a_run_whose_effect_is_still_open(stage, test_agent):
    """In its next life the tool forgets what it had proposed; the run ends when that has ended."""
    from approvals.models import Approval
    from tests import factories

    lives = []

    def work(ctx):
        lives.append(1)
        if len(lives) == 1:
            ctx.operation(
                "note.add", target=f"notes:{stage.tenant.slug}", params={"text": "x"}, reference="1"
            )
        return "forgotten"

    factories.policy(stage.tenant, "note.add", factories.ASK)
    run = stage.start("x", test_agent(work, proposes="note.add"))
    stage.until_asked(run)
    from runs.services import wake

    wake(run.id, "operation", {})
    run = stage.carry_on(run, lambda row: row.blocked_on == ["operation"])
    assert (run.status, run.finished_at) == ("running", None)
    stage.decide(Approval.objects.get(), stage.reviewer())
    run = stage.carry_on(run)
    assert (run.status, answer(run)) == ("completed", "forgotten")
    assert [each for each in types(run) if each == "run.completed"] == ["run.completed"]
