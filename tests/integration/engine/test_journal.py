"""The journal: what a step recorded, by whose clock, and what a life that did nothing counts for."""

import asyncio
import datetime
import threading

from django.db import connection

from agentops.engine.driver import CRASH_LIMIT
from agentops.engine.ledger import RunLedger
from agentops.engine.loading import step_place
from agentops.engine.statements import pool_of
from agentops.kernel import sealed
from agentops.sdk import Retryable
from agentops.tenancy import vault
from runs.events import Event
from runs.models import Step
from tests.stage import answer, story


def opened(step: Step, column: str):
    place = step_place(step.run_id, step.key, column)
    return sealed.unseal_json(vault.opened(step.run.data_key_id), place, getattr(step, f"sealed_{column}"))


def test_a_step_has_the_same_result_in_every_life_and_keeps_what_it_was_asked_masked(stage, test_agent):
    seen = []

    def work(ctx):
        value = ctx.step(
            "measure",
            lambda step, text, n: {
                "rate": 0.5,
                "pair": (n, None),
                "odd": "\ud800",
                "at": datetime.date(2026, 1, 2),
            },
            "anna.smith@example.com",
            7,
        )
        seen.append(value)
        if len(seen) == 1:
            raise Retryable("Again.", retry_after_seconds=0.01)
        return "ok"

    run = stage.carry_on(stage.start("x", test_agent(work, repeatable=True)))
    assert seen[0] == seen[1] == {"rate": 0.5, "pair": [7, None], "odd": "\ufffd", "at": "2026-01-02"}
    steps = {step.key: step for step in Step.objects.filter(run_id=run.pk)}
    assert opened(steps["turn-1/call-0/measure"], "input") == ["a•••@example.com", 7]
    assert opened(steps["turn-1/call-0"], "input") == {"number": 0}
    assert {step.input_digest[:7] for step in steps.values() if step.kind == "model"} == {"sha256:"}
    assert steps["turn-1"].input_digest != steps["turn-2"].input_digest
    starts = [data["attempt"] for type, data in story(run) if type == "tool.started"]
    assert starts == [1, 2]


def test_a_step_whose_result_is_no_json_is_a_fault_that_is_told(stage, test_agent):
    run = stage.carry_on(stage.start("x", test_agent(lambda ctx: ctx.step("thing", lambda step: object()))))
    (failed,) = [data for type, data in story(run) if type == "tool.failed"]
    assert failed["code"] == "invalid_result"
    assert "Step thing" in answer(run)


def test_a_life_that_told_something_and_did_nothing_still_counts(stage):
    """A worker that dies at the end of every turn has written deltas each time: the sixth one is not tried."""
    run = stage.start("Where is order A-1001?")

    def time_passes():
        stage.move_clock(31)
        connection.close()

    async def lives():
        async with pool_of(2) as pool:
            ledger = RunLedger(pool, "one")
            for _ in range(CRASH_LIMIT):
                (mine,) = (await ledger.claim("default", 1)).runs
                await ledger.checkpoint(mine, events=[Event("assistant.delta", {"text": "Well,"})])
                await asyncio.to_thread(time_passes)

    asyncio.run(lives())
    run = stage.carry_on(run)
    assert (run.status, run.error_code) == ("failed", "worker_crash_loop")


def test_a_turn_began_when_postgresql_says_so(stage):
    """The worker's own clock is an hour and a half behind here."""
    stage.move_clock(5_400)
    run = stage.carry_on(stage.start("Where is order A-1001?"))
    message = next(data for type, data in story(run) if type == "assistant.message")
    began = datetime.datetime.fromisoformat(message["started_at"])
    assert abs((began - run.started_at).total_seconds()) < 60


def test_a_tools_wait_is_bounded(stage, test_agent, monkeypatch):
    from agentops.engine import agent_loop

    monkeypatch.setattr(agent_loop, "WAIT_SECONDS", 0.02)
    tries = []

    def work(ctx):
        tries.append(1)
        if len(tries) == 1:
            raise Retryable("Later.", retry_after_seconds=86_400)
        return "done"

    run = stage.carry_on(stage.start("x", test_agent(work)))
    assert (answer(run), len(tries)) == ("done", 2)


def test_text_is_told_also_while_the_model_says_nothing_more(stage, monkeypatch):
    from agentops import llm
    from agentops.engine import agent_loop

    turn, told = llm.turn, threading.Event()

    async def pausing(*args, **more):
        await more["on_delta"]("Let me ")
        await more["on_delta"]("think.")
        while not told.is_set():
            await asyncio.sleep(0.01)
        return await turn(*args, **more)

    monkeypatch.setattr(agent_loop.llm, "turn", pausing)
    run = stage.start("Where is order A-1001?")

    def is_told(row) -> bool:
        return any(type == "assistant.delta" for type, _ in story(row))

    stage.carry_on(run, is_told)
    (delta,) = [data for type, data in story(run) if type == "assistant.delta"]
    assert delta == {"turn": 1, "attempt": 1, "offset": 0, "text": "Let me think."}
    told.set()
    assert stage.carry_on(run).status == "completed"
