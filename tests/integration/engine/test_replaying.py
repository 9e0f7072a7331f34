"""A replay answers everything from the record: it asks no model and no provider, writes no row, and says where the code
would go another way."""

import os
import socket

import pytest
from django.db import connection

from agentops.engine import agent_loop
from agentops.engine.control import cancel_run
from agentops.engine.recorded import Off, shut_in
from agentops.engine.replay import replay
from agentops.engine.retry import retry_run
from agentops.sdk import Agent, Call, Reply, tool
from agentops.sdk.agents import agent as registered
from agentops.sdk.agents import separate_registry
from runs.models import AgentRun
from tests.integration.engine.conftest import Outcome
from tests.integration.engine.test_retrying import EMIL
from tests.stage import LARGE

COUNTED = ("operations_operation", "operations_attempt", "operations_finding", "operations_interest",
           "runs_agentrun", "runs_step", "runs_runevent", "runs_inboxmessage", "audit_auditentry")  # fmt: skip


def walked(run) -> list[tuple[str, str]]:
    return [(line.place, line.match.value) for line in replay(AgentRun.objects.get(pk=run.pk))]


def off(run) -> list[tuple[str, str]]:
    return [line for line in walked(run) if line[1] != "matched"]


def counts() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in COUNTED))
        return list(cursor.fetchone())


@pytest.fixture
def sealed_off(stage, monkeypatch):
    """From here on no model answers, and the provider is not there; what was written is compared at the end."""

    def off_from_now():
        stage.rest()

        async def fails(*args, **more):
            raise AssertionError("a replay asks no model")

        monkeypatch.setattr(agent_loop.llm, "turn", fails)
        before.extend([stage.provider.books()["calls"], counts(), stage.mails()])
        stage.provider.fault("unreachable")

    before: list = []
    yield off_from_now
    stage.provider.fault("ok")
    assert before == [stage.provider.books()["calls"], counts(), stage.mails()]


def test_a_finished_run_is_walked_to_its_answer_and_nothing_is_sent_asked_or_written(stage, sealed_off):
    order, reviewer = stage.order(LARGE), stage.reviewer()
    run = stage.ask_refund(order)
    stage.decide(stage.until_asked(run), reviewer)
    run = stage.carry_on(run)
    waiting = stage.ask_refund(stage.order(LARGE))
    rejected = stage.until_asked(waiting)
    refused = stage.ask_refund(stage.order(LARGE))
    stage.decide(stage.until_asked(refused), reviewer, "reject", reason="No.")
    refused = stage.carry_on(refused)
    assert rejected.status == "requested"
    sealed_off()
    seen = walked(run)
    assert {match for _, match in seen} == {"matched"}
    places = [place for place, _ in seen]
    assert {
        "turn-1",
        "turn-3/call-0/refund.create",
        "turn-3/call-0/receipt-mail",
        "turn-3/call-0",
        "end",
    } <= set(places)
    assert off(refused) == []
    assert walked(waiting)[-1] == ("turn-3/call-0", "matched"), "it walks as far as the record goes"
    assert off(waiting) == []


def test_a_retried_run_is_one_walk(stage, sealed_off):
    run = stage.ask_refund(stage.order(LARGE))
    stage.until_asked(run)
    cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="x")
    again = retry_run(stage.tenant.id, run.id, actor=EMIL, reason="x").run
    stage.decide(stage.until_asked(again), stage.reviewer())
    again = stage.carry_on(again)
    sealed_off()
    assert off(again) == []
    assert off(run) == []


def make(work, *, name="walker", prompt="x", **declared):
    def try_it(ctx, number: int) -> Outcome:
        """Do what the test wants."""
        return Outcome(said=str(work(ctx)))

    def script(told):
        results = [each for each in told if each.role == "tool"]
        return Reply(results[-1].result["said"]) if results else Reply("", (Call("try_it", {"number": 1}),))

    made = tool(**(declared or {"repeatable": True}))(try_it)
    Agent(name, instructions=prompt, tools=[made], offline=script)


def noted(ctx, *, args=(1,), more=False, said="done"):
    ctx.step("first", lambda step, *_: "kept", *args)
    if more:
        ctx.step("second", lambda step: pytest.fail("it ran"))
    return said


CHANGES = {
    "the same": (lambda ctx: noted(ctx), []),
    "another result": (lambda ctx: noted(ctx, said="other"), [("turn-1/call-0", "differs")]),
    "other arguments": (lambda ctx: noted(ctx, args=(2,)), [("turn-1/call-0/first", "differs"), ("turn-1/call-0", "differs")]),
    "a step more": (lambda ctx: noted(ctx, more=True), [("turn-1/call-0/second", "missing"), ("turn-1/call-0", "differs")]),
    "a step less": (lambda ctx: "done", [("turn-1/call-0/first", "missing")]),
    "it reaches outside": (lambda ctx: socket.create_connection(("127.0.0.1", 9)) and noted(ctx), []),
    "it fails": (lambda ctx: 1 / 0, [("turn-1/call-0/first", "missing"), ("turn-1/call-0", "differs")]),
    "it writes a row": (lambda ctx: AgentRun.objects.update(metadata={"x": 1}), [("turn-1/call-0/first", "missing"), ("turn-1/call-0", "differs")]),
}  # fmt: skip


def test_changed_code_is_told_where_it_goes_another_way(stage, sealed_off):
    with separate_registry():
        make(noted)
        run = stage.carry_on(stage.start("x", "walker"))
    sealed_off()
    for what, (work, expected) in CHANGES.items():
        with separate_registry():
            make(work)
            assert off(run) == expected, what
    assert not AgentRun.objects.filter(metadata__x=1).exists()
    with separate_registry():
        make(noted, prompt="y")
        assert off(run) == [("release", "differs")], "the turns are asked the same, under another release"
    with separate_registry():
        make(lambda ctx: pytest.fail("it ran"), reads=True)
        assert off(run) == [("release", "differs")], "what does not declare that it may run again is not run"
    with separate_registry():
        Agent("walker", instructions="x", tools=[], offline=lambda told: Reply("x"))
        assert off(run)[-1] == ("turn-1/call-0", "differs")
    assert registered("walker") is None


@pytest.mark.parametrize("reach", [lambda: socket.getaddrinfo("localhost", 80), lambda: os.system("true")])
def test_a_thread_that_is_shut_in_reaches_nothing(reach):
    with pytest.raises(Off), shut_in("x"):
        reach()
    socket.getaddrinfo("localhost", 80)
