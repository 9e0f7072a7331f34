"""`manage.py run` and `manage.py agent`: what people do at a terminal, with their own rights, in their own name."""

import io

import pytest
from django.core.management import CommandError, call_command

from agentops.audit.models import AuditEntry
from agentops.sdk import Agent
from agentops.sdk import agents as known_agents
from agentops.sdk.agents import separate_registry
from agentops.tenancy.models import Membership
from runs.models import AgentPause, AgentRun
from tests import factories
from tests.stage import LARGE, operation

ROLE = Membership.Role


@pytest.fixture
def emil(stage):
    return factories.person(stage.tenant, ROLE.ENGINEER, name="emil", each_minor=None)


def told(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out, stderr=out)
    return out.getvalue()


def refused(*words: str) -> tuple[int, str]:
    with pytest.raises(CommandError) as error:
        told(*words)
    return error.value.returncode, str(error.value)


def test_a_run_is_started_and_followed_to_its_answer(stage, emil):
    order = stage.order()
    stage.driver()
    said = told(
        "run",
        "start",
        "support-agent",
        f"My order {order['id']} is damaged, please refund it.",
        "--as",
        "emil",
    )
    run = AgentRun.objects.get()
    assert said.startswith(run.public_id)
    assert (run.principal, run.channel) == (f"user:{emil.pk}", "cli")
    assert "operation.succeeded" in said
    assert stage.refunds(order)[0]["id"] in said.splitlines()[-1]
    shown = told("run", "show", run.public_id, "--as", "emil")
    assert operation(run).public_id in shown
    assert order["id"] not in shown.replace(f"order:{order['id']}", "")
    assert "are as on record. Nothing was sent" in told("run", "replay", run.public_id, "--as", "emil")
    with separate_registry():
        agent = known_agents._registered.pop(run.agent)
        Agent(run.agent, instructions="Another prompt.", tools=agent.tools, offline=agent.offline)
        code, words = refused("run", "replay", run.public_id, "--as", "emil")
    assert (code, "1 of " in words) == (1, True)
    assert run.public_id in told("run", "list", "--as", "emil", "--status", "completed")
    assert "No run matches" in told("run", "list", "--as", "emil", "--stuck")
    slow = told("run", "start", "support-agent", "Where is order A-1001?", "--as", "emil", "--detach")
    stage.carry_on(AgentRun.objects.latest("id"))
    assert len(slow.split()) == 1


def test_a_run_is_paused_resumed_cancelled_and_retried_in_the_name_of_who_did_it(stage, emil):
    run = stage.ask_refund(stage.order(LARGE))
    stage.until_asked(run)
    key = run.public_id
    assert "is paused" in told("run", "pause", key, "--as", "emil", "--reason", "Wait.")
    assert "Paused by Emil: Wait." in told("run", "show", key, "--as", "emil")
    assert "paused" in told("run", "list", "--as", "emil", "--status", "paused")
    assert "already" in refused("run", "pause", key, "--as", "emil", "--reason", "x")[1]
    assert "goes on" in told("run", "resume", key, "--as", "emil", "--reason", "x")
    said = told("run", "cancel", key, "--as", "emil", "--reason", "Asked twice.")
    assert "is cancelled" in said
    assert "not sent" in said
    again = told("run", "retry", key, "--as", "emil", "--reason", "After all.")
    new = AgentRun.objects.get(retry_of=run)
    assert f"{key} goes on as {new.public_id}" in again
    assert refused("run", "cancel", key, "--as", "emil", "--reason", "x")[0] == 1
    assert key in told("run", "list", "--as", "emil", "--code", "cancelled")
    told("run", "cancel", new.public_id, "--as", "emil", "--reason", "x")
    rerun = ("run", "rerun", new.public_id, "--as", "emil")
    listed = told(*rerun)
    assert "to be proposed again  op_" in listed
    digest = listed.split("--digest ")[1].split()[0]
    assert "Say why" in refused(*rerun, "--yes")[1]
    assert "Nothing was started" in refused(*rerun, "--digest", "c1:rerun:0", "--reason", "x")[1]
    assert f"{new.public_id} is run again as run_" in told(*rerun, "--digest", digest, "--reason", "x")
    (third,) = new.reruns.all()
    assert f"reruns     {new.public_id}" in told("run", "show", third.public_id, "--as", "emil")
    told("run", "cancel", third.public_id, "--as", "emil", "--reason", "x")
    code, words = refused("run", "follow", new.public_id, "--as", "emil")
    assert (code, "is cancelled: cancelled" in words) == (1, True)
    verbs = AuditEntry.objects.filter(actor=f"user:{emil.pk}", channel="cli").values_list("verb", flat=True)
    assert {"run.paused", "run.resumed", "run.cancelled", "run.retried"} <= set(verbs)


def test_nobody_does_at_a_terminal_what_is_not_theirs_to_do(stage, emil):
    run = stage.start("Where is order A-1001?")
    factories.person(stage.tenant, ROLE.REVIEWER, name="rosa")
    factories.person(factories.tenant("globex"), ROLE.ENGINEER, name="gina")
    for verb in ("cancel", "pause", "resume", "retry", "move", "rerun"):
        words = ("run", verb, run.public_id, "--reason", "x", "--as")
        assert refused(*words, "rosa")[0] == 3
        assert refused(*words, "gina") == (
            4, f"There is no run {run.public_id}; `run list` shows those that there are."
        )  # fmt: skip
        assert refused(*words, "nobody")[0] == 4
    assert refused("run", "start", "support-agent", "x", "--as", "rosa")[0] == 3
    assert refused("agent", "pause", "support-agent", "--reason", "x", "--as", "rosa")[0] == 3
    assert refused("connection", "restore", "stripe", "--as", "rosa")[0] == 3
    assert refused("connection", "restore", "no-such", "--as", "emil")[0] == 4
    assert run.public_id not in told("run", "list", "--as", "gina")
    emil.is_active = False
    emil.save()
    assert refused("run", "cancel", run.public_id, "--reason", "x", "--as", "emil")[0] == 4
    assert AgentRun.objects.get(pk=run.pk).ending == ""


def test_an_agent_is_paused_and_resumed(stage, emil):
    assert "starts no new run of Acme; 0 present ones" in told(
        "agent", "pause", "assistant", "--as", "emil", "--reason", "Mending."
    )
    assert "paused by Emil" in told("agent", "list", "--as", "emil")
    code, words = refused("run", "start", "assistant", "List my notes", "--as", "emil")
    assert (code, "Mending." in words) == (1, True)
    assert "again" in told("agent", "resume", "assistant", "--as", "emil", "--reason", "Mended.")
    assert not AgentPause.objects.exists()
    assert refused("agent", "pause", "no-such", "--as", "emil", "--reason", "x")[0] == 4
    free = refused("run", "start", "support-agent", "x", "--budget-cents", "0", "--as", "emil")
    assert "one cent at least" in free[1]
    assert refused("run", "start", "no-such", "x", "--as", "emil")[0] == 4
