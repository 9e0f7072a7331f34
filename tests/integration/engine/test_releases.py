"""Releases: by content; another one carries a run on and says so; what it has not got parks the run until somebody has it."""

from collections.abc import Callable, Iterator

import pytest
from pydantic import BaseModel

from agentops.audit.entries import Actor
from agentops.engine.control import cancel_run
from agentops.engine.releases import choices, move_run
from agentops.engine.retry import retry_run
from agentops.engine.standing import standing
from agentops.kernel.problems import Conflict
from agentops.sdk import Agent, Call, Reply, Retryable, tool
from agentops.sdk import agents as sdk_agents
from agentops.sdk.agents import separate_registry
from operations.connectors.registry import ACTIONS
from runs.holds import AgentPaused, pause_agent, resume_agent
from runs.models import AgentRun
from runs.services import wake
from tests import factories
from tests.stage import LARGE, answer, operation, story, types

EMIL = Actor("user:7", "cli")


class Outcome(BaseModel):
    said: str


@pytest.fixture
def deploy() -> Iterator[Callable[..., None]]:
    """`deploy("wait_an_hour")`: from now on the agent `tester` has that one tool, and asks for it once; without, it is gone."""
    tried: set[str] = set()
    with separate_registry():

        def release(*names: str, instructions: str = "x") -> None:
            sdk_agents._registered.pop("tester", None)
            if names:
                tools = [waiting(name, tried) for name in names]
                Agent("tester", instructions=instructions, tools=tools, offline=once(names[0]))

        yield release


def waiting(name: str, tried: set[str]):
    def work(ctx) -> Outcome:
        """Wait an hour."""
        if ctx.call_id not in tried:
            tried.add(ctx.call_id)
            raise Retryable("Not now.", retry_after_seconds=3_600)
        return Outcome(said="waited")

    return tool(reads=True, name=name)(work)


def once(name: str):
    def script(conversation):
        results = [message for message in conversation if message.role == "tool"]
        if not results:
            return Reply("", (Call(name, {}),))
        return Reply(str(results[-1].result))

    return script


def row_of(run) -> AgentRun:
    return AgentRun.objects.select_related("release").get(pk=run.pk)


def parked(row: AgentRun) -> bool:
    return row.blocked_on == ["release"]


@pytest.mark.case("I-1")
def test_runs_of_a_release_that_is_gone_say_what_they_need_and_lose_nothing(stage, deploy):
    deploy("wait_an_hour")
    key = {"concurrency_key": "order-7"}
    runs = [stage.start("x", "tester", **(key if number == 3 else {})) for number in range(20)]
    for run in runs:
        stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    first = row_of(runs[0]).release.digest
    stage.rest()
    deploy("look_now")
    stage.move_clock(3_601)
    for run in runs:
        row = stage.carry_on(run, parked)
        assert (row.status, row.needs, row.lease_owner, row.ready_at) == (
            "running", ["tool:tester/wait_an_hour"], None, None,
        )  # fmt: skip
    assert f"Needs release {first.removeprefix('sha256:')[:8]}" in " ".join(standing(row_of(runs[0])))
    moved, cancelled, again, *rest = runs
    assert stage.carry_on(stage.start("Where is order A-1001?", **key)).status == "completed"
    assert (parked(row_of(rest[0])), row_of(rest[0]).concurrency_key) == (True, "order-7")
    found = choices(row_of(moved))
    assert (found.release, found.move.possible) == (first, True)
    assert "wait_an_hour" in found.move.losses[0]
    move_run(stage.tenant.id, moved.id, actor=EMIL, reason="It need not wait.")
    row = stage.carry_on(moved)
    assert (row.status, row_of(moved).release.digest == first) == ("completed", False)
    assert "unknown_tool" in answer(row)
    ended = cancel_run(stage.tenant.id, cancelled.id, actor=EMIL, reason="x").run
    assert (ended.status, ended.error_code) == ("cancelled", "release")
    parkings = types(again).count("run.paused")
    retry_run(stage.tenant.id, again.id, actor=EMIL, reason="x")
    stage.carry_on(again, lambda row: parked(row) and types(row).count("run.paused") > parkings)
    stage.rest()
    deploy("wait_an_hour")
    for run in (again, *rest):
        assert stage.carry_on(run).status == "completed"
    assert row_of(rest[0]).release.digest == first
    told = [data for type, data in story(rest[0]) if type == "run.paused"]
    assert [(each["why"], each["code"]) for each in told] == [("release", "release")]


def test_a_run_of_an_agent_that_is_gone_waits_for_a_release_that_has_it(stage, deploy):
    deploy("wait_an_hour")
    run = stage.start("x", "tester")
    deploy()
    row = stage.carry_on(run, parked)
    assert (row.error_code, row.needs) == ("release", ["agent:tester"])
    wake(run.id, "operation", {})  # makes it due, and for nobody here
    stage.carry_on(stage.start("Where is order A-1001?"))
    assert row_of(run).lease_epoch == row.lease_epoch
    with pytest.raises(Conflict, match="has no agent tester"):
        move_run(stage.tenant.id, run.id, actor=EMIL, reason="x")
    deploy("wait_an_hour")
    stage.carry_on(run, lambda row: row.blocked_on == ["timer"])


def test_another_release_that_has_what_is_needed_carries_a_run_on_and_says_so(stage, deploy):
    deploy("wait_an_hour")
    run = stage.start("x", "tester")
    same = stage.start("x", "tester")
    assert run.release_id == same.release_id
    stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    stage.rest()
    deploy("wait_an_hour", instructions="y")
    assert stage.start("x", "tester").release_id != run.release_id
    stage.move_clock(3_601)
    row = stage.carry_on(run)
    (told,) = [data for type, data in story(run) if type == "run.resumed"]
    assert (told["why"], told["instead_of"]) == ("release", row_of(run).release.digest)
    assert told["release"] != told["instead_of"]
    assert row.status == "completed"
    factories.policy(stage.tenant, "note.add", factories.ASK)
    assert stage.start("Add a note: x", "assistant").release_id is not None


def test_an_operation_of_another_version_is_neither_sent_nor_failed(stage, monkeypatch):
    from dataclasses import replace

    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.rest()
    stage.decide(approval, stage.reviewer())
    stage.move_clock(11)
    now = ACTIONS["refund.create"]
    monkeypatch.setitem(ACTIONS, "refund.create", replace(now, version=now.version + 1))
    row = stage.carry_on(run, parked)
    assert row.needs == [f"action:refund.create@{now.version}"]
    assert (operation(run).status, stage.refunds(order)) == ("approved", [])
    assert not choices(row_of(run)).move.possible
    monkeypatch.setitem(ACTIONS, "refund.create", now)
    assert stage.carry_on(run).status == "completed"
    assert len(stage.refunds(order)) == 1


def test_a_paused_agent_starts_nothing_and_lets_its_runs_end(stage):
    present = stage.start("Where is order A-1001?", dedupe_key="k")
    pause_agent(stage.tenant, "support-agent", actor=EMIL, reason="It is being mended.")
    with pytest.raises(AgentPaused, match="It is being mended"):
        stage.start("Where is order A-1001?")
    assert stage.start("Where is order A-1001?", dedupe_key="k").pk == present.pk
    assert stage.start("List my notes", "assistant").pk
    assert factories.run(factories.tenant("globex")).pk
    with pytest.raises(Conflict, match="paused already"):
        pause_agent(stage.tenant, "support-agent", actor=EMIL, reason="x")
    assert stage.carry_on(present).status == "completed"
    failed = stage.start("List my notes", "assistant")
    cancel_run(stage.tenant.id, failed.id, actor=EMIL, reason="x")
    pause_agent(stage.tenant, "assistant", actor=EMIL, reason="")
    with pytest.raises(AgentPaused):
        retry_run(stage.tenant.id, failed.id, actor=EMIL, reason="x")
    resume_agent(stage.tenant, "support-agent", actor=EMIL, reason="Mended.")
    assert stage.start("Where is order A-1001?").pk
    with pytest.raises(Conflict, match="not paused"):
        resume_agent(stage.tenant, "support-agent", actor=EMIL, reason="x")
