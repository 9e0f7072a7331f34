"""A run spends only what it holds: slices from parent and tenant, a reservation before each turn, the rest given back."""

import json

import pytest
from django.db import transaction
from pydantic import BaseModel

from agentops.audit.entries import SYSTEM
from agentops.engine import aftermath, control
from agentops.engine.ledger import NewStep
from agentops.engine.retry import retry_run
from agentops.sdk import Agent, Limits, Terminal, tool
from agentops.sdk.agents import agent, separate_registry
from runs import budgets
from runs.children import Child, start_child
from runs.models import AgentRun, Slot
from tests import factories
from tests.acceptance.model_server import Answer, Asked, Failure, ModelServer
from tests.integration.engine.test_leases import ledgers, off_loop
from tests.stage import story

MODEL = "anthropic:priced"
WORST_TOKENS = 2_048  # what a turn may answer with
CENT = 10_000
# Input is free and a turn's worst price is 30 cents exactly.
PRICES = f"{MODEL}=0/{30 * CENT / WORST_TOKENS}"
TENTH = WORST_TOKENS // 3  # tokens that cost just below ten cents


class Said(BaseModel):
    text: str


@pytest.fixture
def priced(monkeypatch, settings):
    """`priced(answer)` is a model server at this price."""
    settings.AGENTOPS_MODEL_PRICES = PRICES
    servers = []

    def make(answer):
        server = ModelServer(answer).__enter__()
        servers.append(server)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        return server

    with separate_registry():
        yield make
    for server in servers:
        server.__exit__()


@pytest.mark.case("I-7")
def test_a_family_never_spends_more_than_its_first_run_may(stage, priced):
    """A budget of 1.00: the parent spends 0.40, four children at once want 0.30 each, and one of them is answered at its
    third try.
    """
    tries = []

    def model(asked: Asked) -> Answer | Failure:
        said = json.dumps(asked.body["messages"])
        if "part-" in said and not asked.body.get("tools"):
            tries.append(said)
            if "part-0" in said and sum("part-0" in each for each in tries) < 3:
                return Failure(
                    529,
                    {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
                    {"retry-after": "1"},
                )
            return Answer(("done",), output_tokens=WORST_TOKENS)
        match len(asked.results()):
            case 0:
                return Answer((), (("look", "{}"),), output_tokens=WORST_TOKENS)
            case 1:
                parts = [("ask", json.dumps({"part": f"part-{n}"})) for n in range(4)]
                return Answer((), tuple(parts), output_tokens=TENTH)
        return Answer(("all done",))

    @tool(reads=True)
    def look(ctx) -> Said:
        """Look around."""
        return Said(text="seen")

    @tool(repeatable=True)
    def ask(ctx, part: str) -> Said:
        """Ask a helper."""
        return Said(text=ctx.run("helper", part, budget_cents=30).text)

    server = priced(model)
    Agent("boss", instructions="x", tools=[look, ask], model=MODEL, limits=Limits(budget_cents=100))
    Agent("helper", instructions="x", tools=[], model=MODEL)
    run = stage.carry_on(stage.start("x", "boss"), seconds=60)
    made = list(AgentRun.objects.filter(parent_id=run.pk))
    done = [child for child in made if child.status == "completed"]
    stopped = [child for child in made if child.status == "failed"]
    assert (len(done), len(stopped)) == (2, 2)
    assert {child.error_code for child in stopped} == {"budget"}
    spent = run.spent_microusd + sum(child.spent_microusd for child in made)
    assert 99 * CENT < spent <= 100 * CENT
    assert spent == run.spent_microusd + run.given_microusd
    failed = [data["code"] for type, data in story(run) if type == "tool.failed"]
    assert failed == ["budget", "budget"]
    assert (run.status, run.error_code) == ("failed", "budget")  # nothing is left for an answer
    retried = sum("part-0" in each for each in tries)
    assert retried in (
        0,
        3,
    )  # either it was among the stopped, or it was tried three times on one reservation
    assert len(server.requests) == 2 + len(tries)


def start(parent: AgentRun, cents: int, *, detached: bool = False) -> AgentRun:
    step = f"turn-1/call-0/{parent.children.count()}"
    with transaction.atomic():
        wanted = Child("assistant", "x", cents, detached)
        return start_child(AgentRun.objects.get(pk=parent.pk), step, agent("assistant"), wanted, policies="")


def take(run: AgentRun, cents: int) -> bool:
    with transaction.atomic():
        return budgets.take_slice(budgets.lineage(AgentRun.objects.get(pk=run.pk)), cents * CENT)


def spend(run: AgentRun, cents: int) -> None:
    AgentRun.objects.filter(pk=run.pk).update(spent_microusd=cents * CENT)


def end(run: AgentRun) -> None:
    control.cancel_run(run.tenant_id, run.id, actor=SYSTEM, reason="x")
    aftermath.tell(run.id)


def cents(run: AgentRun | Slot) -> tuple[int, ...]:
    run.refresh_from_db()
    if isinstance(run, Slot):
        return (run.given_microusd // CENT,)
    return (run.slice_microusd or 0) // CENT, run.given_microusd // CENT


@pytest.fixture
def capped(transactional_db):
    """A tenant whose runs may spend a dollar together; its slot."""
    tenant = factories.tenant()
    tenant.budget_microusd = 100 * CENT
    tenant.save()
    return Slot.objects.create(tenant=tenant)


def test_a_tenants_runs_share_its_budget_and_give_back_what_they_leave(capped):
    first, second = (factories.run(capped.tenant, budget_cents=80) for _ in range(2))
    assert take(first, 30)
    assert (cents(first), cents(capped)) == ((30, 0), (30,))
    assert not take(first, 90)  # more than its own budget
    assert not take(second, 75)
    assert (cents(second), cents(capped)) == ((0, 0), (30,))
    spend(first, 10)
    end(first)
    assert cents(capped) == (10,)
    assert take(second, 75)
    assert cents(capped) == (85,)
    assert factories.run(capped.tenant, budget_cents=0).budget_microusd == 100 * CENT


def test_a_child_takes_from_its_parent_and_that_from_the_tenant(capped):
    parent = factories.run(capped.tenant, budget_cents=60)
    child, other = start(parent, 30), start(parent, 500)
    assert other.budget_microusd == 60 * CENT
    assert take(child, 20)
    assert (cents(child), cents(parent), cents(capped)) == ((20, 0), (20, 20), (20,))
    assert not take(other, 50)
    assert take(other, 40)
    assert (cents(other), cents(parent), cents(capped)) == ((40, 0), (60, 60), (60,))
    spend(child, 5)
    end(child)
    assert (cents(parent), cents(capped)) == ((60, 45), (60,))
    end(parent)  # and with it the other one, which has held 40 until now
    assert cents(capped) == (45,)
    aftermath.tell(other.id)
    assert cents(capped) == (5,)


def test_a_retry_has_what_the_run_and_its_children_have_left(transactional_db):
    parent = factories.run(factories.tenant(), budget_cents=100)
    child = start(parent, 50)
    assert take(child, 50)
    spend(child, 30)
    spend(parent, 15)
    end(child)
    end(parent)
    retried = retry_run(parent.tenant_id, parent.id, actor=SYSTEM, reason="x").run
    assert retried.budget_microusd == 55 * CENT


def test_a_detached_child_takes_its_share_for_good(transactional_db):
    parent = factories.run(factories.tenant(), budget_cents=100)
    child = start(parent, 40, detached=True)
    assert (child.budget_microusd, child.slice_microusd) == (40 * CENT, None)
    with pytest.raises(Terminal, match="not enough budget"):
        start(parent, 70, detached=True)
    end(child)
    assert cents(parent) == (0, 40)


def test_a_second_try_sets_nothing_more_aside_and_the_end_of_the_turn_settles_it(stage):
    run = factories.run(stage.tenant, budget_cents=50)

    def reserved() -> tuple[int, int]:
        row = AgentRun.objects.get(pk=run.pk)
        return row.reserved_microusd // CENT, row.spent_microusd // CENT

    async def work(ledger):
        (mine,) = (await ledger.claim("default", 1)).runs
        assert await ledger.reserve(mine, 30 * CENT)
        assert await ledger.reserve(mine, 30 * CENT)
        assert await off_loop(reserved) == (30, 0)
        turn = NewStep("turn-1", "model", "x", {"text": "y"}, cost_microusd=25 * CENT)
        await ledger.checkpoint(mine, [turn])
        assert await off_loop(reserved) == (0, 25)
        assert not await ledger.reserve(mine, 30 * CENT)
        assert await off_loop(reserved) == (0, 25)

    ledgers(work, "one")
