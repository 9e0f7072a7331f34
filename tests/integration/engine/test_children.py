"""Runs that start runs: one child for each place in the journal, told of when it ends, ended with its parent."""

import asyncio

import pytest
from django.db import connection
from pydantic import BaseModel

from agentops.audit.entries import SYSTEM
from agentops.engine import aftermath, children, control
from agentops.engine.ledger import RunLedger
from agentops.engine.live import LeaseLost
from agentops.engine.retry import retry_run
from agentops.sdk import Agent, Call, ChildFailed, Limits, Reply, Terminal, tool
from agentops.sdk.agents import agent, separate_registry
from approvals.models import Approval
from operations.models import Operation
from runs.holds import pause_agent
from runs.models import AgentRun, InboxMessage, Step
from runs.services import requesters_of, wake
from tests import factories
from tests.stage import answer, eventually, story, together


class Said(BaseModel):
    text: str


@pytest.fixture
def parent(test_agent):
    """`parent(work)` is the name of an agent whose one tool is `work(ctx)`; `helper` is an agent that it may start."""

    @tool(reads=True)
    def look(ctx) -> Said:
        """Look around."""
        ctx.sleep(5)
        return Said(text="seen")

    @tool(proposes="note.add")
    def note(ctx) -> Said:
        """Write it down."""
        target = f"notes:{ctx.principal.tenant}"
        ctx.operation("note.add", target=target, params={"text": "x"}, reference=ctx.run_id)
        return Said(text="noted")

    def script(conversation):
        words, said = conversation[0].text, [message for message in conversation if message.role == "tool"]
        if "look" in words and not said:
            return Reply("", (Call("look", {}),))
        if "note" in words and not said:
            return Reply("", (Call("note", {}),))
        if "loop" in words:
            return Reply("", (Call("look", {}),))
        return Reply(f"answer to {words}")

    def make(work, **declared):
        name = test_agent(work, **{"repeatable": True, **declared})
        Agent("helper", instructions="x", tools=[look, note], offline=script, limits=Limits(steps=3))
        return name

    return make


def child_of(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(parent_id=run.pk)


def test_a_tool_starts_a_run_and_is_given_its_answer(stage, parent):
    lives = []

    def work(ctx):
        lives.append(1)
        return ctx.run("helper", "a question", budget_cents=7).text

    run = stage.carry_on(stage.start("x", parent(work), actor="customer:C-1"))
    child = child_of(run)
    assert (answer(run), len(lives)) == ("answer to a question", 2)
    assert (child.status, child.budget_microusd, child.parent_step) == (
        "completed",
        70_000,
        "turn-1/call-0/run-helper",
    )
    assert (child.actor, child.principal, child.root_id, child.data_key_id, child.trace_id) == (
        run.actor,
        run.principal,
        run.id,
        run.data_key_id,
        run.trace_id,
    )
    assert child.deadline_at == run.deadline_at
    (message,) = InboxMessage.objects.filter(run_id=run.pk)
    assert (message.kind, message.dedupe_key, run.inbox_taken) == ("child", child.public_id, 1)
    assert dict(story(child))["run.created"]["parent"] == run.public_id
    eventually(lambda: not AgentRun.objects.filter(aftermath=True).exists(), "both ends are told")


def test_the_parent_parks_on_its_child_and_a_person_who_may_not_decide_for_it_may_not_for_the_child(
    stage, parent
):
    factories.policy(stage.tenant, "note.add", factories.ASK)
    person = stage.reviewer()
    run = stage.start("x", parent(lambda ctx: ctx.run("helper", "note it").text), actor=f"user:{person.pk}")
    stage.carry_on(run, lambda row: row.blocked_on == ["child"] and row.lease_owner is None)
    child = child_of(run)
    approval = stage.until_asked(child)
    assert AgentRun.objects.get(pk=run.pk).status == "running"
    assert requesters_of(child) == [run.actor, run.principal, "agent:helper", "agent:tester"]
    with pytest.raises(Exception, match="yourself"):
        stage.decide(approval, person)
    stage.decide(approval, stage.reviewer())
    assert answer(stage.carry_on(run)) == "answer to note it"


def test_one_tool_may_start_several_each_under_its_key(stage, parent):
    def work(ctx):
        return " ".join(ctx.run("helper", f"q{n}", key=f"part-{n}").run_id for n in range(2))

    run = stage.carry_on(stage.start("x", parent(work)))
    made = [each.public_id for each in AgentRun.objects.filter(parent_id=run.pk).order_by("id")]
    assert answer(run) == " ".join(made)
    assert len(made) == 2


@pytest.mark.parametrize("dies", ["before the start", "after the start", "before the message is journaled"])
def test_whenever_the_worker_dies_there_is_one_child(stage, parent, monkeypatch, dies):
    died = []

    def dying(module, name, first):
        really = getattr(module, name)

        def work(*args, **more):
            if died:
                return really(*args, **more)
            died.append(1)
            if not first:
                really(*args, **more)
            raise connection.Database.OperationalError("gone")

        monkeypatch.setattr(module, name, work)

    match dies:
        case "before the start":
            dying(children, "_start", True)
        case "after the start":
            dying(children, "_start", False)
        case _:
            checkpoint = RunLedger.checkpoint

            async def losing(self, run, steps=(), events=(), ending=None):
                if steps and steps[0].key.endswith("run-helper") and not died:
                    died.append(1)
                    raise asyncio.CancelledError
                await checkpoint(self, run, steps, events, ending)

            monkeypatch.setattr(RunLedger, "checkpoint", losing)
    monkeypatch.setattr("agentops.engine.driver.AFTER_LOSS_SECONDS", 0.0)
    run = stage.carry_on(stage.start("x", parent(lambda ctx: ctx.run("helper", "q").text)))
    assert (answer(run), bool(died)) == ("answer to q", True)
    assert child_of(run).status == "completed"


def test_a_childs_failure_is_told_as_such(stage, parent):
    caught = []

    def work(ctx):
        try:
            return ctx.run("helper", "loop").text
        except ChildFailed as failed:
            caught.append((failed.status, failed.code))
            raise

    run = stage.as_time_passes(stage.start("x", parent(work)))
    child = child_of(run)
    assert caught == [("failed", "step_limit")]
    assert run.status == "completed"
    assert answer(run) == f"The run of helper was failed: {child.error_detail}"
    told = dict(story(run))["tool.failed"]
    assert told["code"] == "step_limit"


def test_children_end_with_their_parent_unless_detached(stage, parent):
    factories.policy(stage.tenant, "note.add", factories.ASK)

    def work(ctx):
        ctx.run("helper", "note it alone", detached=True, key="alone")
        return ctx.run("helper", "note it").text

    run = stage.start("x", parent(work))
    stage.carry_on(run, lambda row: row.blocked_on == ["child"])
    kept, ended = AgentRun.objects.filter(parent_id=run.pk).order_by("id")
    for each in (kept, ended):
        stage.until_asked(each)
    receipt = control.cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="enough")
    assert [(each.action, each.outcome) for each in receipt.effects] == [("note.add", "not_sent")]
    kept, ended = AgentRun.objects.filter(parent_id=run.pk).order_by("id")
    assert (ended.status, ended.error_code) == ("cancelled", "parent_cancelled")
    assert (kept.status, kept.ending) == ("waiting_for_approval", "")
    assert Approval.objects.get(operation__run=ended).status == "withdrawn"
    stage.decide(Approval.objects.get(operation__run=kept), stage.reviewer())
    assert stage.carry_on(kept).status == "completed"
    eventually(lambda: not AgentRun.objects.filter(aftermath=True).exists(), "every end is told")
    assert InboxMessage.objects.filter(run_id=run.pk, kind="child").count() == 0


def test_a_child_that_starts_in_the_moment_of_the_end_ends_too(stage, parent, monkeypatch):
    """The family was read; before the parent is locked, another child begins: the end begins again, and sees it."""
    factories.policy(stage.tenant, "note.add", factories.ASK)
    run = stage.start("x", parent(lambda ctx: ctx.run("helper", "note it").text))
    stage.carry_on(run, lambda row: row.blocked_on == ["child"])
    child = stage.until_asked(child_of(run)).operation.run
    stage.rest()
    family, looks = children.family_of, []

    def as_if_new(run_id, **more):
        looks.append(1)
        return [] if len(looks) == 1 else family(run_id, **more)

    monkeypatch.setattr(children, "family_of", as_if_new)
    control.cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="x")
    child.refresh_from_db()
    assert child.status == "cancelled"
    assert len(looks) > 2


def test_a_child_of_a_run_that_ended_without_it_is_ended(stage, parent):
    """Its tool was abandoned, so the parent went on to its end; nobody waits for the child any more."""
    run = stage.start("x", parent(lambda ctx: ctx.run("helper", "look").text))
    stage.carry_on(run, lambda row: row.blocked_on == ["child"])
    stage.carry_on(child_of(run), lambda row: row.blocked_on == ["timer"])
    stage.rest()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_agentrun SET status = 'completed', finished_at = agentops_now(), ready_at = NULL WHERE id = %s",
            [run.id],
        )
    for run_id in aftermath.due():
        aftermath.tell(run_id)
    assert child_of(run).status == "cancelled"


def test_another_question_under_the_same_key_is_refused(stage, parent):
    asked = iter(["first", "second"])
    run = stage.carry_on(stage.start("x", parent(lambda ctx: ctx.run("helper", next(asked)).text)))
    assert (run.status, run.error_code) == ("failed", "journal_mismatch")


def test_a_retry_carries_on_what_its_child_had_done(stage, parent):
    """No turn of the child is asked again, and what it proposed is its successor's."""
    name = parent(lambda ctx: ctx.run("worker", "go").text)
    note, look = agent("helper").tool("note"), agent("helper").tool("look")

    def script(conversation):
        done = sum(message.role == "tool" for message in conversation)
        return Reply("", (Call(("note", "look")[done], {}),)) if done < 2 else Reply("both")

    Agent("worker", instructions="x", tools=[note, look], offline=script)
    run = stage.start("x", name)
    asleep = AgentRun.objects.filter(parent_id=run.pk, blocked_on=["timer"])
    stage.carry_on(run, lambda row: asleep.exists())
    first = asleep.get()
    control.cancel_run(stage.tenant.id, run.id, actor=SYSTEM, reason="x")
    again = retry_run(stage.tenant.id, run.id, actor=SYSTEM, reason="x").run
    assert answer(stage.as_time_passes(again)) == "both"
    second = AgentRun.objects.get(parent_id=again.pk)
    assert second.retry_of_id == first.pk
    assert list(second.steps.filter(kind="model").values_list("key", flat=True)) == ["turn-3"]
    assert Operation.objects.count() == 1


def test_a_retry_begins_no_second_run_for_good(stage, parent, monkeypatch):
    """Its first life ended between the start of the detached run and the record of it."""
    name = parent(lambda ctx: ctx.run("helper", "q", detached=True).run_id)

    def gone(child):
        control.cancel_run(stage.tenant.id, child.parent_id, actor=SYSTEM, reason="x")
        raise LeaseLost

    with monkeypatch.context() as dying:
        dying.setattr(children, "begun", gone)
        run = stage.carry_on(stage.start("x", name))
    again = stage.carry_on(retry_run(stage.tenant.id, run.id, actor=SYSTEM, reason="x").run)
    (only,) = AgentRun.objects.filter(parent__isnull=False)
    assert (only.parent_id, answer(again)) == (run.pk, only.public_id)


def test_no_budget_is_no_licence(stage, parent):
    """Nothing is not without limit: a run that may spend nothing is not begun."""

    def work(ctx):
        with pytest.raises(Terminal) as refused:
            ctx.run("helper", "q", budget_cents=0)
        return refused.value.code

    run = stage.carry_on(stage.start("x", parent(work)))
    assert (answer(run), run.children.count()) == ("budget", 0)


@pytest.mark.parametrize(
    ("declared", "wanted", "code"),
    [
        ({"repeatable": False, "reads": True}, "helper", "not_repeatable"),
        ({"repeatable": False}, "helper", "not_repeatable"),
        ({}, "nobody", "unknown_agent"),
    ],
)
def test_what_may_not_start_a_run_is_told_so(stage, parent, declared, wanted, code):
    def work(ctx):
        with pytest.raises(Terminal) as refused:
            ctx.run(wanted, "q")
        return refused.value.code

    run = stage.carry_on(stage.start("x", parent(work, **declared)))
    assert answer(run) == code
    assert not run.children.exists()


def test_no_child_of_a_paused_agent_begins(stage, parent):
    name = parent(lambda ctx: ctx.run("helper", "q").text)
    pause_agent(stage.tenant, "helper", actor=SYSTEM, reason="x")
    run = stage.carry_on(stage.start("x", name))
    assert dict(story(run))["tool.failed"]["code"] == "agent_paused"
    assert not run.children.exists()


def test_families_are_bounded(stage, parent, monkeypatch):
    monkeypatch.setattr("runs.children.MAX_CHILDREN", 1)
    monkeypatch.setattr("runs.children.MAX_DEPTH", 2)

    def work(ctx):
        for n in range(2):
            ctx.run("helper", "q", budget_cents=1, detached=True, key=str(n))

    run = stage.carry_on(stage.start("x", parent(work)))
    assert dict(story(run))["tool.failed"]["code"] == "too_many_runs"
    assert run.children.count() == 1
    with separate_registry():
        again = []

        @tool(repeatable=True)
        def deeper(ctx) -> Said:
            """Go on below."""
            return Said(text=ctx.run(again[0], "q").text)

        def script(conversation):
            results = [message for message in conversation if message.role == "tool"]
            if not results:
                return Reply("", (Call("deeper", {}),))
            return Reply(results[0].result["text"] if results[0].ok else results[0].result["error"]["code"])

        again.append(Agent("deep", instructions="x", tools=[deeper], offline=script).name)
        assert answer(stage.carry_on(stage.start("x", "deep"))) == "too_deep"
    assert AgentRun.objects.filter(agent="deep").count() == 2
    monkeypatch.setattr("runs.children.MAX_CHILDREN", 9)
    monkeypatch.setattr("runs.children.MAX_FAMILY", 2)
    run = stage.carry_on(stage.start("x", parent(work)))
    assert (run.children.count(), dict(story(run))["tool.failed"]["code"]) == (1, "too_many_runs")


def test_a_doubled_message_is_one_and_early_ones_are_kept_in_order(stage):
    run = stage.start("Where is order A-1001?")
    sent = together(*(lambda: wake(run.id, "webhook", {"n": 1}, dedupe_key="evt_1"),) * 4)
    assert sorted(sent) == [False, False, False, True]
    wake(run.id, "webhook", {"n": 2}, dedupe_key="evt_2")
    row = AgentRun.objects.get(pk=run.pk)
    assert (row.inbox_seq, row.inbox_taken) == (2, 0)
    assert list(run.inbox.order_by("n").values_list("dedupe_key", flat=True)) == ["evt_1", "evt_2"]
    run = stage.carry_on(run)
    assert (run.status, run.inbox_taken) == ("completed", 2)
    assert wake(run.id, "webhook", {}) is False


def test_a_sleep_is_measured_by_the_databases_clock_and_slept_once(stage, parent):
    lives = []

    def work(ctx):
        lives.append(1)
        ctx.sleep(3_600)
        ctx.sleep(60)
        return "woke"

    run = stage.start("x", parent(work))
    stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    stage.rest()
    stage.move_clock(3_590)
    assert AgentRun.objects.get(pk=run.pk).blocked_on == ["timer"]
    stage.move_clock(11)
    stage.carry_on(run, lambda row: len(lives) == 2 and row.blocked_on == ["timer"])
    stage.move_clock(61)
    assert answer(stage.carry_on(run)) == "woke"
    assert len(lives) == 3
    assert Step.objects.filter(run_id=run.pk, name="sleep").count() == 2
