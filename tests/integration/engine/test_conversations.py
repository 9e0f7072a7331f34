"""A follow-up begins when the request before it has ended, in order, and knows what was said; nothing is stranded."""

from itertools import pairwise

import pytest

from agentops.audit.entries import SYSTEM
from agentops.engine.control import cancel_run, fail_run
from agentops.engine.outlook import outlook
from agentops.engine.pause import pause_run, resume_run
from agentops.engine.rerun import rerun
from agentops.sdk import Agent, Reply
from agentops.sdk.agents import separate_registry
from runs import conversations
from runs.models import AgentRun, Conversation
from runs.services import wake
from tests import factories
from tests.stage import LARGE, answer, eventually, story, together


@pytest.fixture
def parrot():
    """An agent that repeats the whole conversation."""

    def script(conversation):
        return Reply(" / ".join(f"{message.role}: {message.text}" for message in conversation))

    with separate_registry():
        yield Agent("parrot", instructions="x", tools=[], offline=script).name


@pytest.fixture
def client(stage):
    return factories.principal(stage.tenant)


def say(client, text, name="parrot", **more):
    return factories.run(client, text, name=name, conversation_id="chat-7", **more)


def seen(run) -> tuple:
    row = AgentRun.objects.get(pk=run.pk)
    return row.status, row.ready_at is not None


def test_a_follow_up_begins_after_the_one_before_it_and_knows_what_was_said(stage, client, parrot):
    order = stage.order(LARGE)
    first = say(client, f"Refund {order['id']}, it arrived damaged.", "support-agent")
    second, third = say(client, "And now?"), say(client, "Thanks.")
    assert dict(story(second))["run.created"]["after"] == first.public_id
    assert dict(story(third))["run.created"]["after"] == second.public_id
    approval = stage.until_asked(first)
    assert [seen(run) for run in (second, third)] == [("queued", False)] * 2
    stage.decide(approval, stage.reviewer())
    third = stage.carry_on(third)
    first, second = (AgentRun.objects.get(pk=run.pk) for run in (first, second))
    assert first.finished_at <= second.started_at <= second.finished_at <= third.started_at
    told = f"user: Refund {order['id']}, it arrived damaged. / assistant: {answer(first)} / user: And now?"
    assert answer(second) == told
    assert answer(third) == f"{told} / assistant: {told} / user: Thanks."
    assert "129.00 EUR" in told
    again = second
    for _ in range(2):  # a rerun knows what its source knew: neither the source nor what followed it
        shown = outlook(again).digest
        again = stage.carry_on(rerun(stage.tenant.id, again.id, digest=shown, actor=SYSTEM, reason="x").run)
        assert answer(again) == told


def test_a_waiting_one_can_be_cancelled_and_nothing_is_stranded_if_the_first_fails(stage, client, parrot):
    first = say(client, f"Refund {stage.order(LARGE)['id']}, it arrived damaged.", "support-agent")
    second, third = say(client, "two"), say(client, "three")
    stage.until_asked(first)
    stage.rest()
    cancel_run(stage.tenant.id, second.id, actor=SYSTEM, reason="x")
    assert seen(third) == ("queued", False)
    fail_run(stage.tenant.id, first.id, code="agent_error", detail="x", actor=SYSTEM)
    told = answer(stage.carry_on(third))
    assert "damaged. / assistant: [This request ended without an answer: failed.]" in told
    assert told.endswith(
        "user: two / assistant: [This request ended without an answer: cancelled.] / user: three"
    )
    eventually(lambda: not AgentRun.objects.filter(aftermath=True).exists(), "every end is told")


def test_nothing_but_its_turn_makes_a_waiting_one_due(stage, client, parrot):
    first = say(client, "one")
    second = say(client, "two")
    wake(second.id, "webhook", {})
    assert (seen(first), seen(second)) == (("queued", True), ("queued", False))
    assert answer(stage.carry_on(second)).endswith("user: two")
    assert AgentRun.objects.get(pk=second.pk).inbox_taken == 2


def test_a_pause_of_a_waiting_one_does_not_let_it_jump_the_queue(stage, client, parrot):
    first, second = say(client, "one"), say(client, "two")
    pause_run(stage.tenant.id, second.id, actor=SYSTEM, reason="x")
    resume_run(stage.tenant.id, second.id, actor=SYSTEM, reason="x")
    assert (seen(first), seen(second)) == (("queued", True), ("queued", False))
    assert answer(stage.carry_on(second)).endswith("user: two")
    assert AgentRun.objects.get(pk=first.pk).status == "completed"


def test_of_requests_at_the_same_moment_one_begins(stage, client, parrot):
    made = together(*(lambda: say(client, "hello"),) * 4)
    assert Conversation.objects.count() == 1
    assert sorted(seen(run)[1] for run in made) == [False, False, False, True]
    for run in made:
        stage.carry_on(run)
    stage.rest()
    made = together(*(lambda: say(client, "again"),) * 4)
    assert sorted(seen(run)[1] for run in made) == [False, False, False, True]
    for run in made:
        stage.carry_on(run)
    spans = sorted(AgentRun.objects.values_list("started_at", "finished_at"))
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_another_callers_conversation_of_the_same_name_is_another(stage, client, parrot):
    say(client, "mine")
    theirs = say(factories.principal(stage.tenant), "theirs")
    assert answer(stage.carry_on(theirs)) == "user: theirs"


def test_what_a_run_is_told_of_earlier_ones_is_bounded():
    exchanges = [(f"question {n}", "x" * 5_000) for n in range(10)] + [("last", "y" * 50_000)]
    kept = conversations.bounded(exchanges)
    assert [asked for asked, _ in kept] == ["question 6", "question 7", "question 8", "question 9", "last"][
        -5:
    ]
    assert sum(len(asked) + len(answered) for asked, answered in kept) <= conversations.EARLIER_CHARS
    assert len(kept[-1][1]) == conversations.TEXT_CHARS
    assert kept[-1][1].endswith(conversations.CUT)
