"""Why a run ended can be told apart everywhere: in its row, its stream, the API and the lists; only an answer is completed."""

from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client

from agentops.api import mapping
from agentops.audit.entries import Actor
from agentops.engine.control import cancel_run, end_overdue
from agentops.engine.replay import replay
from agentops.sdk import Agent, Call, Limits, OutcomeUnknown, Reply, tool
from agentops.sdk.agents import separate_registry
from approvals.services import AUTHORITY, expire_due
from operations.connectors.registry import ACTIONS
from operations.dispatch import depart, loaded, send
from operations.models import Incident
from runs import ends
from runs.models import AgentRun
from runs.services import wake
from tests import factories
from tests.integration.engine.conftest import Outcome
from tests.stage import LARGE, answer, operation, story, types

EMIL = Actor("user:7", "cli")
HOLD_SECONDS = 60


@pytest.fixture
def agents(stage):
    """`loops` asks for the same for ever, `counts` for something else each time, `insists` proposes and cannot do without."""

    @tool(reads=True)
    def look(ctx, number: int) -> Outcome:
        """Look."""
        return Outcome(said="seen")

    @tool(proposes=("note.add",))
    def note(ctx, text: str) -> Outcome:
        """Note."""
        target = f"notes:{stage.tenant.slug}"
        return Outcome(
            said=ctx.operation("note.add", target=target, params={"text": text}, reference=text).status
        )

    def asks(name, of):
        return lambda said: Reply("", (Call(name, of(len(said))),))

    with separate_registry():
        Agent("loops", instructions="x", tools=[look], offline=asks("look", lambda n: {"number": 0}))
        few = Limits(steps=4)
        Agent(
            "counts",
            instructions="x",
            tools=[look],
            offline=asks("look", lambda n: {"number": n}),
            limits=few,
        )
        Agent(
            "insists",
            instructions="x",
            tools=[note],
            offline=asks("note", lambda n: {"text": "a"}),
            refusal_ends=True,
        )
        yield


@pytest.mark.case("I-8")
def test_eight_ends_have_eight_reasons(stage, agents):
    """By webhook they are told in a later part of the product."""
    answered = stage.carry_on(stage.start("Where is order A-1001?"))
    counted = stage.carry_on(stage.start("x", "counts"))
    spent = stage.start("x", "loops", budget_cents=1)
    AgentRun.objects.filter(pk=spent.pk).update(spent_microusd=10_000)
    spent = stage.carry_on(spent)
    looped = stage.carry_on(stage.start("x", "loops"), lambda row: row.blocked_on == ["operator"])
    cancel_run(stage.tenant.id, looped.id, actor=EMIL, reason="It goes round.")
    factories.policy(stage.tenant, "note.add", factories.ASK)
    silent = stage.start("x", "insists")
    stage.until_asked(silent)
    late, cancelled = stage.start("x", "insists", deadline_seconds=600), stage.start("x", "insists")
    for run in (late, cancelled):
        stage.until_asked(run)
    cancel_run(stage.tenant.id, cancelled.id, actor=EMIL, reason="x")
    stage.move_clock(25 * 3_600)
    end_overdue()
    expire_due()
    silent = stage.carry_on(silent)
    deny = [{"code": "never", "when": "true", "outcome": "deny", "risk": "high"}]
    factories.policy(stage.tenant, "note.add", deny)
    denied = stage.carry_on(stage.start("x", "insists"))
    wanted = {
        answered: "", counted: "step_limit", spent: "budget", late: "deadline",
        looped: "repeated_call", denied: "policy", cancelled: "cancelled", silent: "expired",
    }  # fmt: skip
    assert len(set(wanted.values())) == len(wanted) == 8
    reader = factories.principal(stage.tenant)
    console = Client()
    console.force_login(factories.person(stage.tenant, factories.Membership.Role.ENGINEER))
    for run, code in wanted.items():
        row = AgentRun.objects.select_related("release", "conversation").get(pk=run.pk)
        assert (row.status == "completed") == (code == ""), row
        shown = mapping.run(row, reader)
        assert (shown.error.code if shown.error else "") == code
        kind, data = story(row)[-1]
        assert (kind, data.get("code", "")) == (f"run.{row.status}", code)
        if code:
            page = console.get("/admin/runs/", {"q": code}).content.decode()
            assert [other for other in wanted if other.public_id in page] == [row]
            assert code in ends.CODES


def lose_the_answer(stage, run, door):
    """What the run asks for is approved, sent and done; nobody hears of it, and from then on the provider is away."""
    approval = stage.until_asked(run)
    stage.decide(approval, stage.reviewer())
    stage.carry_on(run, is_parked)  # while the sending is held back: the doubt itself must wake it
    stage.rest()
    stage.move_clock(HOLD_SECONDS + 1)
    departure = depart(loaded(approval.operation_id), AUTHORITY, worker="test")
    stage.provider.fault("commit_then_drop", times=1, door=door)
    assert send(departure).status == "unknown"
    stage.provider.fault("unreachable", door=door)


def is_parked(row):
    return row.lease_owner is None and row.blocked_on == ["operation"] and row.inbox_taken == row.inbox_seq


def patient(monkeypatch, name, seconds):
    monkeypatch.setitem(ACTIONS, name, replace(ACTIONS[name], patience_seconds=seconds))


def said(run):
    return [data["text"] for type, data in story(run) if type == "assistant.message"]


def test_after_its_patience_a_run_answers_that_the_outcome_is_unknown_and_ends_once_it_is_known(
    stage, settings, monkeypatch
):
    settings.AGENTOPS_HOLD_SECONDS = HOLD_SECONDS
    impatient = stage.ask_refund(stage.order(LARGE))
    lose_the_answer(stage, impatient, "payments")
    stage.move_clock(3_600)
    stage.carry_on(impatient, is_parked)
    wake(impatient.id, "operation", {})
    assert "unknown" not in said(stage.carry_on(impatient, is_parked))[-1], "None waits for ever"
    stage.provider.fault("ok")
    assert "have refunded" in answer(stage.as_time_passes(impatient))

    patient(monkeypatch, "refund.create", 600)
    order = stage.order(LARGE)
    run = stage.ask_refund(order, deadline_seconds=7_000)
    stage.until_asked(run)  # the operation is its own: whoever proposes later joins it
    joined = stage.ask_refund(order)
    stage.until_asked(joined)
    lose_the_answer(stage, run, "payments")
    stage.carry_on(run, is_parked), stage.carry_on(joined, is_parked)
    stage.move_clock(500)
    wake(run.id, "operation", {})
    assert "unknown" not in said(stage.carry_on(run, is_parked))[-1]
    stage.move_clock(101)
    run = stage.carry_on(run, lambda row: "unknown; a person is on it" in said(row)[-1] and is_parked(row))
    assert (run.status, run.blocked_on, run.open_effects) == ("running", ["operation"], 1)
    told, made = said(run), operation(run)
    incident = Incident.objects.get(kind="outcome_unknown", about=made.public_id, closed_at=None)
    wake(joined.id, "operation", {})
    assert "unknown" not in said(stage.carry_on(joined, is_parked))[-1], "nothing would hold it open"
    stage.move_clock(7_000)
    assert end_overdue() == 0, "it has its answer"

    stage.provider.fault("ok")
    run, joined = stage.as_time_passes(run), stage.as_time_passes(joined)
    assert (run.status, operation(run).status, len(stage.refunds(order))) == ("completed", "succeeded", 1)
    assert (said(run), answer(run), types(run)[-1]) == (told, told[-1], "run.completed")
    assert "have refunded" in answer(joined)
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert {line.match for line in replay(run)} == {"matched"}


def test_what_a_tool_was_told_stays_so_in_every_later_life_of_its_call(stage, settings, monkeypatch):
    """It does something else instead; meanwhile the outcome is found, and the tool is called again."""
    settings.AGENTOPS_HOLD_SECONDS = HOLD_SECONDS
    target = f"notes:{stage.tenant.slug}"

    @tool(proposes=("note.add",))
    def note(ctx) -> Outcome:
        """Note."""

        def add(text):
            return ctx.operation("note.add", target=target, params={"text": text}, reference=text, key=text)

        try:
            return Outcome(said=f"first {add('first').status}")
        except OutcomeUnknown as unknown:
            return Outcome(said=f"first {unknown.status}, second {add('second').status}")

    def play(conversation):
        last = conversation[-1]
        return Reply(last.result["said"]) if last.role == "tool" else Reply("", (Call("note", {}),))

    factories.policy(stage.tenant, "note.add", factories.ASK)
    patient(monkeypatch, "note.add", 60)
    with separate_registry():
        Agent("noter", instructions="x", tools=[note], offline=play)
        run = stage.start("x", "noter")
        lose_the_answer(stage, run, "shop")
        stage.carry_on(run, is_parked)
        stage.move_clock(61)
        second = stage.until_asked(run)
        stage.provider.fault("ok")
        first = run.operations.get(step__endswith="/first")
        stage.as_time_passes(run, lambda row: row.operations.get(pk=first.pk).status == "succeeded")
        stage.decide(second, stage.reviewer())
        run = stage.as_time_passes(run)
        assert (run.status, answer(run)) == ("completed", "first unknown, second succeeded")
        assert {line.match for line in replay(run)} == {"matched"}


def test_the_table_of_codes_is_the_one_that_callers_read():
    page = (Path(__file__).resolve().parents[3] / "docs/run-ends.md").read_text()
    for code, sentence in ends.CODES.items():
        assert f"| `{code}` | {sentence} |" in page
