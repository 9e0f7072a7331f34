"""Runs that runs have started: a child ends with its parent, unless it was detached."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from agentops.audit.entries import Actor
from agentops.kernel import canonical
from agentops.kernel.transitions import LostRace
from agentops.sdk import agents as sdk_agents
from agentops.sdk.agents import Agent
from agentops.sdk.errors import ChildFailed, JournalMismatch, Terminal
from agentops.sdk.values import ChildRun
from approvals.policy import published
from operations.moves import retried
from runs import budgets, queries
from runs import services as runs
from runs.children import Child, of_step, start_child
from runs.models import AgentRun
from runs.retries import line_of
from runs.states import RunStatus

from .live import LeaseLost, LiveRun
from .retry import inherit

_FAMILY = """
WITH RECURSIVE family AS (
  SELECT id, finished_at, ending FROM runs_agentrun WHERE parent_id = %s AND NOT detached
  UNION ALL
  SELECT r.id, r.finished_at, r.ending FROM runs_agentrun r JOIN family f ON r.parent_id = f.id WHERE NOT r.detached
)
SELECT id, finished_at IS NULL AND ending = '' FROM family ORDER BY id
"""


def family_of(run_id: UUID, *, at_work: bool = False) -> list[UUID]:
    """The runs below `run_id` that end with it, at any depth, by id; `at_work`: only those that have not ended yet."""
    with connection.cursor() as cursor:
        cursor.execute(_FAMILY, [run_id])
        return [child for child, works in cursor.fetchall() if works or not at_work]


def end_children(parent: AgentRun, locked: Sequence[UUID], actor: Actor) -> list[AgentRun]:
    """First move of the end of all that end with the locked, ending `parent`; returns them, in the order of their ids.

    `locked` are the members of its family whose rows this transaction has locked, in that order, after the parent's: an id
    is always greater than that of its parent. Raises LostRace where a child was started before the parent was locked.
    """
    ended = []
    for child_id in family_of(parent.id, at_work=True):
        if child_id not in locked:
            raise LostRace("a child was started meanwhile")
        child = runs.lock(parent.tenant_id, child_id)
        reason = f"The run that started it, {parent}, was ended."
        code = f"parent_{parent.ending or parent.status}"
        ended.append(runs.begin_ending(child, "cancelled", code=code, actor=actor, reason=reason))
    return ended


def start(live: LiveRun, step: str, wanted: Child, fence: Callable[[], None]) -> AgentRun:
    """The child at this place of the run's journal, begun now if it is new; never two, whoever dies in between.

    `fence` raises LeaseLost where the call may begin nothing more; it is asked under the run's lock.
    """
    agent = sdk_agents.offered(wanted.agent)
    if agent is None:
        raise Terminal(f"There is no agent {wanted.agent}.", code="unknown_agent")
    if wanted.budget_cents is not None and wanted.budget_cents < 1:
        raise Terminal("A run's budget is one cent at least.", code="budget")
    return _start(live, step, agent, wanted, fence)


@retried
def _start(live: LiveRun, step: str, agent: Agent, wanted: Child, fence: Callable[[], None]) -> AgentRun:
    if wanted.detached:  # it takes its share at once: whoever lends is locked before the run
        budgets.lineage(AgentRun.objects.get(pk=live.id))
    run = runs.lock(live.tenant_id, live.id)
    if run.lease_owner != live.owner or run.lease_epoch != live.epoch or run.ending:
        raise LeaseLost(live.public_id)
    fence()
    child = of_step(run.id, step)
    if child is None:
        child = _begin(run, step, agent, wanted)
    elif _asked(child.agent, queries.input_text(child)) != _asked(wanted.agent, wanted.input):
        raise _mismatch(step)
    live.aftermath = True
    return child


def _begin(run: AgentRun, step: str, agent: Agent, wanted: Child) -> AgentRun:
    """A new child; in a retry it carries on the work of the one that stood here before, and one for good is there already."""
    before = _before(run, step, wanted)
    if before is not None and before.detached:
        return before
    child = start_child(run, step, agent, wanted, policies=published(run.tenant_id, agent), retry_of=before)
    if before is not None:
        inherit(before, child)
    return child


def _before(run: AgentRun, step: str, wanted: Child) -> AgentRun | None:
    """The child at this place of what `run` retries, unless it was asked something else, or somebody has retried it alone."""
    found = next(filter(None, (of_step(each.id, step) for each in line_of(run)[1:])), None)
    if found is None or _asked(found.agent, queries.input_text(found)) != _asked(wanted.agent, wanted.input):
        return None
    retried_alone = AgentRun.objects.filter(tenant_id=found.tenant_id, retry_of=found).exists()
    return None if retried_alone and not found.detached else found


def begun(child: AgentRun) -> dict[str, Any]:
    """What is journaled of a child that nobody waits for."""
    return _record(child, text="")


def ended(child: AgentRun) -> dict[str, Any]:
    """What is journaled of a child that has ended."""
    result = queries.result(child)
    detail = child.error_detail or child.ending_reason
    return _record(child, text=result["text"] if result else "", code=child.error_code, detail=detail)


def answer(step: str, wanted: Child, journaled: dict[str, Any]) -> ChildRun:
    """What the tool is given for the journaled child; raises ChildFailed, and JournalMismatch where it asked for another."""
    if journaled["asked"] != _asked(wanted.agent, wanted.input):
        raise _mismatch(step)
    run_id, status = journaled["run_id"], journaled["status"]
    if status in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise ChildFailed(run_id, wanted.agent, status, journaled["code"], journaled["detail"])
    return ChildRun(run_id=run_id, agent=wanted.agent, text=journaled["text"])


def _record(child: AgentRun, **told: str) -> dict[str, Any]:
    asked = _asked(child.agent, queries.input_text(child))
    return {"asked": asked, "run_id": child.public_id, "status": child.status, **told}


def _asked(agent: str, input: str) -> str:
    return canonical.digest("child", [agent, input])


def _mismatch(step: str) -> JournalMismatch:
    return JournalMismatch(f"{step} was recorded with another agent or other words.")


@retried
def take_slice(live: LiveRun, needed_microusd: int) -> bool:
    """Let the run hold that much beyond what it has spent and given; False where nobody lends it so much."""
    holders = budgets.lineage(AgentRun.objects.get(pk=live.id))
    *_, run = holders
    assert isinstance(run, AgentRun)
    if run.lease_owner != live.owner or run.lease_epoch != live.epoch:
        raise LeaseLost(live.public_id)
    live.aftermath = True
    return budgets.take_slice(holders, needed_microusd)
