"""What a yes is tied to: content and not order, one intent and not one call, an effect and not a word."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from agentops.engine import settle as engine_settle
from agentops.engine.live import Waiting
from agentops.kernel import canonical
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict
from agentops.sdk import Agent, Call, Receipt, Reply, tool
from agentops.sdk import agents as sdk_agents
from agentops.sdk.agents import separate_registry
from agentops.sdk.errors import JournalMismatch, OperationRefused, Terminal
from agentops.sdk.values import Money
from approvals import queries
from approvals.models import Approval
from operations.connectors.base import Answer
from operations.models import Finding, Operation
from operations.reconcile import carry_on, reconcile
from operations.services import intend
from operations.settlement import Says
from operations.settlement import settle as word
from operations.states import OperationStatus, PersonsVerdict, Verdict
from runs.models import AgentRelease, AgentRun
from tests import factories
from tests.ledger import Crash, Life
from tests.stage import LARGE, answer, operation, story
from tests.world import GIFT, World

S = OperationStatus
STEP = "turn-1/call-0/gift.send"


def settle(
    world: World, run: AgentRun, account: str, amount_minor: int, step: str = STEP, owner: str = "one"
):
    """One life of the run at that step: a receipt, or what it waits for."""
    AgentRun.objects.filter(pk=run.pk).update(
        status="running", lease_owner=owner, lease_epoch=run.lease_epoch + 1, lease_expires_at=Now()
    )
    run.refresh_from_db()
    life = Life(run.id, run.tenant_id, run.public_id, owner, run.lease_epoch)
    params = {"account": account, "amount_minor": amount_minor, "currency": "EUR"}
    given = {"target": f"account:{account}", "params": params, "reference": account}
    try:
        return engine_settle.settle(life, step, GIFT.name, lambda: None, **given)
    except Waiting as waits:
        return waits


def one_asked(world: World) -> Approval:
    return Approval.objects.get(status="requested")


@pytest.mark.case("C-2")
def test_other_arguments_after_the_pause_are_another_proposal(world):
    """The model says 10 before the pause, 99 on another account after it: nothing of either is sent on the old yes."""
    person, run = factories.person(world.tenant, each_minor=40_000), world.run()
    settle(world, run, "acc-a", 1_000)
    old = one_asked(world)
    world.decide(old, person)
    assert "approval" in settle(world, run, "acc-b", 9_900).kinds
    old.refresh_from_db()
    assert world.connector.books == {}
    assert (old.status, old.closed_reason) == ("revoked", "proposal_differs")
    assert (old.operation.status, old.operation.error_code) == (S.CANCELLED, "proposal_differs")
    new = one_asked(world)
    moved = queries.proposal(new)["moved"]
    assert (moved["since"], moved["why"]) == (str(old), "proposal_differs")
    assert {each["name"]: (each["then"], each["now"]) for each in moved["changes"]} == {
        "account": ("acc-a", "acc-b"),
        "amount_minor": (1_000, 9_900),
    }
    assert [data["reason"] for type, data in story(run) if type == "operation.cancelled"] == [
        "proposal_differs"
    ]
    settle(world, run, "acc-c", 5_000)  # while the question is open: it is withdrawn, and the newest is asked
    assert Approval.objects.filter(status="withdrawn", closed_reason="proposal_differs").get() == new
    with pytest.raises(
        JournalMismatch
    ):  # a tool that asks for something else each time has a fault of its own
        settle(world, run, "acc-d", 5_000)
    world.decide(one_asked(world), person)
    receipt = settle(world, run, "acc-c", 5_000)
    assert receipt.amount_minor == 5_000
    assert [each["account"] for each in world.connector.books.values()] == ["acc-c"]
    with pytest.raises(JournalMismatch):  # what was sent stands
        settle(world, run, "acc-a", 1_000)
    assert len(world.connector.books) == 1


@pytest.mark.case("C-5")
def test_equal_meaning_is_one_digest_and_other_meaning_another(still_world):
    world = still_world
    run = world.run()

    def digest(account="acc-é", amount_minor=1_000, **more):
        params = {"account": account, "amount_minor": amount_minor, "currency": "EUR", **more}
        shuffled = dict(sorted(params.items(), key=lambda item: item[0][::-1]))
        asked = intend(run, GIFT.name, target=f"account:{account} ", params=shuffled, reference=" r-1 ")
        return asked.proposal_digest(0), engine_key(asked)

    def engine_key(asked):
        from operations.services import operation_key

        return operation_key(asked, 0)

    same = {digest(), digest("acc-e\u0301"), digest(memo="")}
    assert len(same) == 1
    assert len({*same, digest(amount_minor=1_001), digest("acc-e"), digest(memo="x")}) == 4
    for amount in (
        10.0,
        "10.00",
        "1000",
        True,
    ):  # money is whole minor units: nothing else has a meaning to compare
        with pytest.raises(Terminal):
            digest(amount_minor=amount)
    fields = {"b": 1, "a": {"y": None, "x": Money(amount_minor=1_000, currency="EUR").model_dump()}}
    turned = {"a": {"x": {"currency": "EUR", "amount_minor": 1_000}}, "b": 1}
    assert canonical.digest("t", fields) == canonical.digest("t", turned)
    with pytest.raises(canonical.NotCanonical):
        canonical.digest("t", {"amount": 10.0})
    published = (Path(__file__).parents[3] / "docs/canonical.md").read_text()
    assert canonical.VERSION in published
    rules = canonical.__doc__.partition("\n\n")[2]
    assert " ".join(rules.split()) in " ".join(published.split())


@pytest.mark.case("C-6")
@pytest.mark.parametrize("point", ["F1", "F2", "F3"])
def test_a_yes_is_used_up_once_by_its_operation_however_often_the_worker_dies(world, monkeypatch, point):
    person, run = factories.person(world.tenant, each_minor=40_000), world.run()
    settle(world, run, "acc-a", 1_000)
    approval = one_asked(world)
    world.decide(approval, person)
    send, dead = world.connector.send, []

    def dies(call, request, before_first_byte):
        if point == "F1":
            dead.append(1)
            raise Crash
        done = send(call, request, before_first_byte)
        dead.append(done)
        raise Crash  # the provider has done it; nobody heard, or stored, the answer

    monkeypatch.setattr(world.connector, "send", dies)
    with pytest.raises(Crash):
        settle(world, run, "acc-a", 1_000)
    monkeypatch.setattr(world.connector, "send", send)
    approval.refresh_from_db()
    used_at = approval.consumed_at
    assert (approval.consumed_by, len(dead)) == (approval.operation_id, 1)
    for life in range(5):
        settle_quietly(world, run, f"life-{life}")
        world.move_clock(90)
        carry_on(approval.operation_id, engine_settle.AUTHORITY, worker="sweep")
    approval.refresh_from_db()
    assert (approval.status, approval.consumed_at) == ("approved", used_at)
    assert Operation.objects.get().status == S.SUCCEEDED
    assert len(world.sent(approval.operation)) == 1
    assert Approval.objects.count() == 1


def settle_quietly(world, run, owner):
    try:
        return settle(world, run, "acc-a", 1_000, owner=owner)
    except OperationRefused as refused:
        return refused


@pytest.mark.case("D-10")
def test_an_approved_call_that_succeeds_without_an_effect_is_looked_up_and_made_again_under_the_same_yes(
    stage,
):
    """The provider answers 200 with nothing in it. No machine trusts such an answer enough to send once more: it looks, sees
    that there is no effect, and a person lets the same bytes go again. The same intent, proposed meanwhile, joins it.
    """
    order = stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.provider.fault("empty_200", times=1)
    stage.decide(approval, stage.reviewer())
    stage.as_time_passes(run, lambda row: operation(run).status == S.ESCALATED)
    looked = [
        each.verdict for each in Finding.objects.filter(operation_id=operation(run).id).order_by("number")
    ]
    assert (looked[0], looked[-1]) == ("contradiction", "absent")
    again = stage.ask_refund(order)
    stage.carry_on(again, lambda row: row.blocked_on == ["operation"])
    assert operation(again) == operation(run)
    says = Says(PersonsVerdict.SEND_AGAIN, "The list of the charge is empty.")
    word(stage.tenant.id, approval.operation_id, says, person=factories.settler(stage.tenant), channel="cli")
    run = stage.as_time_passes(run)
    made = operation(run)
    assert (run.status, made.status, made.attempts, made.generation) == ("completed", S.SUCCEEDED, 2, 0)
    assert len(stage.refunds(order)) == 1
    assert Approval.objects.get().consumed_by == made.id  # one question, used up once


def gift_agent(name: str, *, gifts: int = 1, instructions: str = "x") -> None:
    """An agent that proposes gifts, all in one turn, and tells what came of them."""

    @tool(proposes=GIFT.name)
    def give(ctx, account: str) -> Receipt:
        """Give something."""
        params = {"account": account, "amount_minor": 1_000, "currency": "EUR"}
        return ctx.operation(GIFT.name, target=f"account:{account}", params=params, reference=account)

    def script(conversation):
        results = [message for message in conversation if message.role == "tool"]
        if not results:
            return Reply("", tuple(Call("give", {"account": f"{name}-{n}"}) for n in range(gifts)))
        return Reply(" | ".join(str(each.result) for each in results))

    Agent(name, instructions=instructions, tools=[give], offline=script)


@pytest.fixture
def gifts(world):
    """The in-process provider on a stage's drivers: the connector is `world`'s."""
    with separate_registry():
        yield world


@pytest.mark.case("D-3")
def test_of_three_questions_at_once_each_answer_is_for_the_one_that_it_names(gifts, stage_of):
    world, stage = gifts, stage_of(gifts)
    gift_agent("three", gifts=3)
    person = factories.person(world.tenant, each_minor=40_000)
    run = stage.start("x", "three")
    stage.carry_on(run, lambda row: Approval.objects.filter(status="requested").count() == 3)
    first, second, third = (
        Approval.objects.get(operation__target_name=f"three-{number}") for number in range(3)
    )
    from django.test import Client

    token = factories.token(world.tenant, "approvals:decide", person=person)
    bare = Client().post(
        f"/v1/runs/{run}/approvals/approve",
        {"proposal_digest": second.proposal_digest},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert bare.status_code == 422
    assert bare.json()["errors"][0]["pointer"] == "/approval_id"
    world.decide(second, person)
    world.decide(third, person, "reject", reason="Not this one.")
    stage.carry_on(run, lambda row: Operation.objects.filter(status=S.SUCCEEDED).exists())
    stage.carry_on(run, lambda row: row.status == "waiting_for_approval")
    assert [each["account"] for each in world.connector.books.values()] == ["three-1"]
    assert [Approval.objects.get(pk=each.pk).status for each in (first, second, third)] == [
        "requested", "approved", "rejected",
    ]  # fmt: skip
    world.decide(first, person)
    run = stage.carry_on(run)
    assert "Not this one." in answer(run)
    assert len(world.connector.books) == 2


@pytest.mark.case("D-1")
def test_a_second_press_after_a_failure_behind_the_effect_is_told_of_the_effect(gifts, stage_of, monkeypatch):
    from agentops import llm
    from agentops.engine import agent_loop

    world, stage = gifts, stage_of(gifts)
    gift_agent("one")
    person = factories.person(world.tenant, each_minor=40_000)
    run = stage.start("x", "one")
    approval = stage.until_asked(run)
    turn, tries = llm.turn, []

    async def flaky(*args, **more):
        tries.append(1)
        if len(tries) <= 3:
            raise llm.ModelRetryable("Busy.", code="busy", retry_after_seconds=0.01)
        return await turn(*args, **more)

    monkeypatch.setattr(agent_loop.llm, "turn", flaky)
    world.decide(approval, person)
    run = stage.carry_on(run)
    assert (run.status, len(tries)) == ("completed", 4)
    with pytest.raises(Conflict) as told:
        world.decide(approval, person)
    made = Operation.objects.get()
    assert told.value.code == "already_decided"
    assert (told.value.extra["operation_status"], told.value.extra["provider_ref"]) == (
        "succeeded",
        made.provider_ref,
    )
    assert (
        f"It was carried out: {made} is succeeded. The receipt is {made.provider_ref}." in told.value.detail
    )
    assert len(world.connector.books) == made.attempts == 1


@pytest.mark.case("D-8")
@pytest.mark.case("I-2")
def test_an_answer_is_read_from_its_row_by_whoever_goes_on_after_an_upgrade(gifts, stage_of):
    """Parked; the application is upgraded, migrations included; answered; another worker of another release goes on."""
    world, stage = gifts, stage_of(gifts)
    gift_agent("parked")
    person = factories.person(world.tenant, each_minor=40_000)
    run = stage.start("x", "parked")
    approval = stage.until_asked(run)
    began = AgentRun.objects.get(pk=run.pk).release
    stage.rest()
    said = StringIO()
    call_command("upgrade", stdout=said)
    assert (
        f"{run}  acme  parked  release {began.digest.rpartition(':')[2][:8]}  waits for approval"
        in said.getvalue()
    )
    call_command("migrate", verbosity=0)
    sdk_agents._registered.pop("parked")
    gift_agent("parked", instructions="Another release.")
    AgentRelease.objects.create(tenant=world.tenant, agent="parked", digest="c1:newer", manifest={})
    assert world.decide(approval, person).status == "approved"
    AgentRun.objects.filter(pk=run.pk).update(metadata={"more": "of it"})
    run = stage.carry_on(run)
    assert run.status == "completed"
    assert AgentRun.objects.get(pk=run.pk).release == began
    assert (Approval.objects.count(), len(world.connector.books)) == (1, 1)


def test_no_answer_without_a_receipt_is_an_effect(world):
    person = factories.person(world.tenant, each_minor=40_000)
    approval = world.ask()
    world.decide(approval, person)
    world.connector.answers.append(Answer(Verdict.CONTRADICTION, code="no_receipt"))
    assert world.send(approval.operation).status == S.UNKNOWN
    assert world.connector.books == {}


def test_the_next_generation_goes_under_the_same_yes_while_that_lives_and_asks_anew_after(world):
    """The provider replays a stored error: that key can say nothing else, and nothing was done under it."""
    person = factories.person(world.tenant, each_minor=40_000)
    for is_late in (False, True):
        approval = world.ask()
        world.decide(approval, person)
        world.connector.answers.append(Answer(Verdict.SPENT, code="stored_error"))
        assert world.send(approval.operation).status == S.UNKNOWN
        world.move_clock(60)
        made = reconcile(approval.operation_id)
        assert (made.status, made.generation) == (S.APPROVED, 1)
        if is_late:
            world.move_clock(24 * 3600)
        after = world.send(made)
        approval.refresh_from_db()
        assert approval.consumed_by == made.id
        if not is_late:
            assert (after.status, approval.status, Approval.objects.count()) == (S.SUCCEEDED, "approved", 1)
            continue
        assert (after.status, approval.status, approval.closed_reason) == (
            S.PENDING,
            "superseded",
            "approval_expired",
        )
        world.decide(world.open_of(made), person)
        assert world.send(made).status == S.SUCCEEDED
    assert len(world.connector.books) == 2
