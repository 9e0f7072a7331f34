"""Why a run ended can be told apart everywhere: in its row, its stream, the API and the lists; only an answer is completed."""

from pathlib import Path

import pytest
from django.test import Client

from agentops.api import mapping
from agentops.audit.entries import Actor
from agentops.engine.control import cancel_run, end_overdue
from agentops.sdk import Agent, Call, Limits, Reply, tool
from agentops.sdk.agents import separate_registry
from approvals.services import expire_due
from runs import ends
from runs.models import AgentRun
from tests import factories
from tests.integration.engine.conftest import Outcome
from tests.stage import story

EMIL = Actor("user:7", "cli")


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


def test_the_table_of_codes_is_the_one_that_callers_read():
    page = (Path(__file__).resolve().parents[3] / "docs/run-ends.md").read_text()
    for code, sentence in ends.CODES.items():
        assert f"| `{code}` | {sentence} |" in page
