"""A run that another run starts: the place in the parent's journal is its name, so no crash and no race starts two."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connection

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7_after
from agentops.sdk.agents import Agent
from agentops.sdk.errors import Terminal
from agentops.tenancy import vault

from . import budgets, wakeups
from .events import Event, append
from .holds import AgentPaused, require_agent
from .models import AgentRun
from .releases import pinned
from .services import MICROUSD_PER_CENT, concurrency, input_place

MAX_DEPTH = 5
MAX_CHILDREN = 100  # that one run may start in its life
MAX_FAMILY = 1_000  # runs that one run may lead to, itself among them
_FAMILY_SIZE = """
WITH RECURSIVE family AS (
  SELECT %s::uuid AS id
  UNION ALL SELECT r.id FROM runs_agentrun r JOIN family f ON r.parent_id = f.id
)
SELECT count(*) FROM (SELECT 1 FROM family LIMIT %s) counted
"""


@dataclass(frozen=True)
class Child:
    """What a tool asks for; `budget_cents` None takes the agent's own limit."""

    agent: str
    input: str
    budget_cents: int | None = None
    detached: bool = False


def of_step(parent_id: UUID, step: str) -> AgentRun | None:
    """The run that was started at this place of the parent's journal."""
    return AgentRun.objects.filter(parent_id=parent_id, parent_step=step).first()


def start_child(
    parent: AgentRun,
    step: str,
    agent: Agent,
    wanted: Child,
    *,
    policies: str,
    retry_of: AgentRun | None = None,
) -> AgentRun:
    """A queued child of the locked `parent`; it acts for whom the parent acts for, under the parent's data key.

    `retry_of` is the run whose work it carries on. `policies` is the digest of the rules that decide about it. Raises Terminal where the agent is paused, the family is too
    deep or too large, or there is not budget enough for a detached child.
    """
    _require_room(parent)
    try:
        require_agent(parent.tenant_id, agent.name)
    except AgentPaused as paused:
        raise Terminal(paused.detail, code=paused.code) from None
    limits = agent.limits
    cents = wanted.budget_cents if wanted.budget_cents is not None else limits.budget_cents
    budget = budgets.share(parent, cents * MICROUSD_PER_CENT)
    if wanted.detached:
        budgets.give_for_good(parent, budget)
    deadline = now() + timedelta(seconds=limits.deadline_seconds)
    if not wanted.detached and parent.deadline_at is not None:
        deadline = min(deadline, parent.deadline_at)
    run_id = uuid7_after(parent.id)
    key = vault.opened(parent.data_key_id)
    child = AgentRun.objects.create(
        id=run_id,
        tenant_id=parent.tenant_id,
        actor=parent.actor,
        principal=parent.principal,
        channel=parent.channel,
        agent=agent.name,
        release=pinned(parent.tenant_id, agent, policies),
        pool=parent.pool,
        priority=parent.priority,
        **concurrency(agent),
        data_key_id=parent.data_key_id,
        sealed_input=sealed.seal_json(key, input_place(run_id), {"text": wanted.input}),
        parent=parent,
        root_id=parent.root_id or parent.id,
        parent_step=step,
        retry_of=retry_of,
        detached=wanted.detached,
        budget_microusd=budget,
        slice_microusd=None if wanted.detached else 0,
        max_steps=limits.steps,
        deadline_at=deadline,
        trace_id=parent.trace_id,
        aftermath=True,
    )
    if not parent.aftermath:
        AgentRun.objects.filter(pk=parent.pk).update(aftermath=True)
    append(
        child,
        Event(
            "run.created",
            {
                "agent": child.agent,
                "actor": child.actor,
                "channel": child.channel,
                "parent": parent.public_id,
                **({"retry_of": retry_of.public_id} if retry_of else {}),
            },
        ),
    )
    call = step.rpartition("/")[0]
    append(
        parent,
        Event("tool.progress", {"call_id": call, "text": f"{agent.name} began.", "run_id": child.public_id}),
    )
    by = Actor(f"agent:{parent.agent}", "worker", on_behalf_of=parent.actor)
    told = {"agent": child.agent, "parent": parent.public_id}
    record(child.tenant_id, "run.started", "run", child.public_id, by, detail=told)
    wakeups.ring(child.pool)
    return child


def _require_room(parent: AgentRun) -> None:
    if parent.children.count() >= MAX_CHILDREN:
        raise Terminal(
            f"This run has started {MAX_CHILDREN} runs, and may start no more.", code="too_many_runs"
        )
    depth, first = 1, parent
    while first.parent is not None:
        depth, first = depth + 1, first.parent
    if depth >= MAX_DEPTH:
        raise Terminal(f"Runs start each other {MAX_DEPTH} deep already.", code="too_deep")
    with connection.cursor() as cursor:
        cursor.execute(_FAMILY_SIZE, [first.id, MAX_FAMILY])
        if cursor.fetchone()[0] >= MAX_FAMILY:
            raise Terminal(
                f"This run and those it led to are {MAX_FAMILY}, and start no more.", code="too_many_runs"
            )
