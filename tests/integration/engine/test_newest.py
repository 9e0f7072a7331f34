"""Newest wins: a start ends the earlier runs under its concurrency key, wherever they are; nothing of theirs comes after it."""

import pytest

from agentops.audit.entries import Actor
from agentops.engine.control import cancel_run
from agentops.engine.newest import start_newest
from agentops.kernel.problems import Invalid
from agentops.sdk import Retryable
from agentops.sdk.agents import agent
from runs.models import AgentRun
from runs.services import Start
from tests import factories
from tests.stage import LARGE, operation, together, types

EMIL = Actor("user:7", "admin")


def newest(client, key: str, **more):
    asked = Start(input="Where is order A-1001?", concurrency_key=key, **more)
    return start_newest(client, agent("support-agent"), asked, trace_id="0" * 31 + "1")


@pytest.mark.case("H-1")
def test_a_run_that_waits_for_its_next_try_makes_none_after_the_cancel(stage, test_agent):
    """Its next try is in five minutes; it is cancelled, or a newer one under its key wins, and ten pass."""
    tries = []

    def work(ctx):
        tries.append(1)
        raise Retryable("Not now.", retry_after_seconds=300)

    name, client = test_agent(work), factories.principal(stage.tenant)
    backs_off, keyed, other, theirs = (
        factories.run(tenant, "x", name=name, **key)
        for tenant, key in (
            (stage.tenant, {}),
            (stage.tenant, {"concurrency_key": "order-7"}),
            (stage.tenant, {"concurrency_key": "order-8"}),
            (factories.tenant(), {"concurrency_key": "order-7"}),
        )
    )
    for run in (backs_off, keyed):
        row = stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
        assert (row.lease_owner, row.ready_at is None) == (None, False)
    for run in (other, theirs):
        stage.carry_on(run, lambda row: row.blocked_on == ["timer"])
    cancel_run(stage.tenant.id, backs_off.id, actor=EMIL, reason="x")
    won = newest(client, "order-7")
    assert [(each.run, each.effects) for each in won.replaced] == [(keyed, [])]
    ended = [(backs_off, "cancelled", "user:7"), (keyed, "superseded_by_newer", client.name)]
    assert len(tries) == 4
    tries.clear()
    stage.move_clock(200)  # nobody's time yet
    assert stage.carry_on(won.run).status == "completed"
    cancel_run(stage.tenant.id, other.id, actor=EMIL, reason="x")
    cancel_run(
        theirs.tenant_id, theirs.id, actor=EMIL, reason="Not the key's."
    )  # raises, had it ended with the other
    stage.move_clock(400)
    assert stage.carry_on(stage.start("Where is order A-1001?")).is_terminal
    for run, code, actor in ended:
        row = AgentRun.objects.get(pk=run.pk)
        assert (row.status, row.error_code, row.ending_actor, row.ready_at) == (
            "cancelled",
            code,
            actor,
            None,
        )
        assert types(run)[-2:] == ["run.cancel_requested", "run.cancelled"]
    assert tries == []


def test_the_newest_run_under_a_key_replaces_those_before_and_what_they_sent_is_followed(stage):
    """One at rest in its queue, one whose question is open, one whose refund is in doubt."""
    client, (unsure, asked) = factories.principal(stage.tenant), (stage.order(), stage.order(LARGE))
    under_key = {"concurrency_key": "customer-1", "concurrency_limit": 3}
    stage.provider.fault("commit_then_drop", times=1, door="payments")
    in_doubt = stage.carry_on(
        stage.ask_refund(unsure, **under_key), lambda row: row.operations.filter(status="unknown").exists()
    )
    approval = stage.until_asked(stage.ask_refund(asked, **under_key))
    stage.rest()
    queued = stage.start("Where is order A-1001?", **under_key)
    with pytest.raises(Invalid):
        newest(client, "")
    won = newest(client, "customer-1", dedupe_key="once")
    outcomes = {each.run.pk: [effect.outcome for effect in each.effects] for each in won.replaced}
    assert outcomes == {in_doubt.pk: ["unknown"], approval.operation.run_id: ["not_sent"], queued.pk: []}
    approval.refresh_from_db()
    assert approval.status == "withdrawn"
    again = newest(client, "customer-1", dedupe_key="once")
    assert (again.run, again.is_new, again.replaced) == (won.run, False, [])
    row = AgentRun.objects.get(pk=in_doubt.pk)
    assert (row.status, row.ending, row.blocked_on) == ("running", "cancelled", ["operation"])
    assert stage.as_time_passes(in_doubt).status == "cancelled"
    assert (operation(in_doubt).status, len(stage.refunds(unsure)), stage.refunds(asked)) == (
        "succeeded",
        1,
        [],
    )
    assert stage.carry_on(won.run).status == "completed"


def test_of_starts_at_the_same_moment_one_is_the_newest_and_replaces_the_others(stage):
    client = factories.principal(stage.tenant)
    for _ in range(3):
        before = stage.start("Where is order A-1001?", concurrency_key="order-7")
        outcomes = together(*[lambda: newest(client, "order-7")] * 4)
        replaced = [each.run.pk for one in outcomes for each in one.replaced]
        (left,) = {before.pk, *(one.run.pk for one in outcomes)} - set(replaced)
        assert (len(replaced), AgentRun.objects.get(pk=left).status) == (4, "queued")
        cancel_run(stage.tenant.id, left, actor=EMIL, reason="x")
