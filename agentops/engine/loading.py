"""A claimed run as the driver holds it: its row, its journal with that of the runs it retries, and what it needs."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.rows import DictRow

from agentops.kernel import sealed
from agentops.kernel.sealed import Place
from agentops.sdk.agents import Agent
from operations.connectors.registry import ACTIONS
from runs import conversations, releases
from runs.releases import Manifest
from runs.services import input_place, result_place

from .live import LiveRun
from .stepper import calls_of, turns_done

# What of a claimed run stands in other tables: its tenant, its release, and the actions of operations that are still open.
FACTS = """
SELECT r.id, t.slug, rel.digest, rel.manifest, extract(epoch FROM r.deadline_at - agentops_now()) AS left_seconds,
  agentops_now() AS at,
  ARRAY(SELECT DISTINCT 'action:' || o.action || '@' || o.action_version
        FROM operations_interest i JOIN operations_operation o ON o.id = i.operation_id
        WHERE i.run_id = r.id AND NOT o.status = ANY(%(final)s)) AS open_actions
FROM runs_agentrun r JOIN tenancy_tenant t ON t.id = r.tenant_id JOIN runs_agentrelease rel ON rel.id = r.release_id
WHERE r.id = ANY(%(ids)s)
"""

# The steps of each run, those of the runs that it retries first: what they completed is not done again.
JOURNALS = """
WITH RECURSIVE line AS (
  SELECT id AS run_id, id AS of_run, retry_of_id, 0 AS back FROM runs_agentrun WHERE id = ANY(%(ids)s)
  UNION ALL
  SELECT line.run_id, earlier.id, earlier.retry_of_id, line.back + 1
  FROM line JOIN runs_agentrun earlier ON earlier.id = line.retry_of_id
)
SELECT line.run_id, line.of_run, s.key, s.status, s.sealed_result
FROM line JOIN runs_step s ON s.run_id = line.of_run ORDER BY line.back DESC
"""
TRY = re.compile(r"/retry-\d+$")  # a wait before another try; a retried run has all its tries again


def step_place(run_id: UUID, key: str, column: str = "result") -> Place:
    return Place("runs_step", f"{run_id}/{key}", column)


def actions_here() -> list[str]:
    """The actions that this process can send, in the words of `AgentRun.needs`."""
    return [f"action:{action.name}@{action.version}" for action in ACTIONS.values()]


def has() -> list[str]:
    """What this process can carry on, in the words of `AgentRun.needs`."""
    return [*releases.has(), *actions_here()]


def in_words(needs: Sequence[str]) -> str:
    """What `AgentRun.needs` says, for people."""
    said = []
    for need in needs:
        kind, _, name = need.partition(":")
        words = {"tool": "the tool {1}", "action": "{0} in version {1}"}.get(kind, "the agent {0}")
        said.append(words.format(*name.replace("@", "/").split("/")))
    return ", ".join(said)


def missing(
    agent: Agent, manifest: Manifest, steps: Mapping[str, Any], open_actions: Sequence[str]
) -> list[str]:
    """What a run needs of the release that it was begun under, and this process has not got.

    A tool that its release had and that a call is waiting for; the version of an action with an open operation. A tool that
    its release had not is no need: the model is told that there is none.
    """
    last = turns_done(steps)
    undone = [call.tool for call in calls_of(steps, last) if call.key not in steps] if last else []
    known = manifest.get("tools", {})
    tools = {f"tool:{agent.name}/{name}" for name in undone if name in known and agent.tool(name) is None}
    return sorted(tools | (set(open_actions) - set(actions_here())))


def live(row: DictRow, facts: DictRow, steps: list[DictRow], agent: Agent, owner: str) -> LiveRun:
    key = row["key"]
    inherited = [step for step in steps if step["of_run"] == row["id"] or not TRY.search(step["key"])]
    done = {
        step["key"]: sealed.unseal_json(key, step_place(step["of_run"], step["key"]), step["sealed_result"])
        for step in inherited
        if step["sealed_result"] is not None
    }
    left = facts["left_seconds"]
    return LiveRun(
        id=row["id"],
        tenant_id=row["tenant_id"],
        tenant=facts["slug"],
        actor=row["actor"],
        principal=row["principal"],
        channel=row["channel"],
        agent=agent,
        release=facts["digest"],
        trace_id=row["trace_id"],
        key=key,
        owner=owner,
        epoch=row["lease_epoch"],
        input=sealed.unseal_json(key, input_place(row["id"]), row["sealed_input"])["text"],
        earlier=[],
        steps=done,
        started={step["key"] for step in inherited if step["sealed_result"] is None} - done.keys(),
        max_steps=row["max_steps"],
        steps_taken=row["steps_taken"],
        budget_microusd=row["budget_microusd"],
        spent_microusd=row["spent_microusd"],
        deadline=time.monotonic() + float(left) if left is not None else None,
        crash_count=row["crash_count"],
        aftermath=row["aftermath"],
        concurrency_key=row["concurrency_key"],
        missing=missing(agent, facts["manifest"], done, facts["open_actions"]),
        inbox_read=row["inbox_taken"],
        taken_at=facts["at"],
    )


def earlier(run: LiveRun, rows: list[DictRow]) -> list[tuple[str, str]]:
    """What was asked before in the run's conversation, with its answers, oldest first; as much of it as is told."""

    def text(place: Place, column: bytes) -> str:
        return str(sealed.unseal_json(run.key, place, column)["text"])

    exchanges = [
        (
            text(input_place(row["id"]), row["sealed_input"]),
            text(result_place(row["id"]), row["sealed_result"])
            if row["sealed_result"] is not None
            else conversations.unanswered(row["status"]),
        )
        for row in rows
        if row["reader"] == run.id
    ]
    return conversations.bounded(exchanges)
