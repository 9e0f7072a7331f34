"""Runs that runs have started: a child ends with its parent, unless it was detached."""

from collections.abc import Sequence
from uuid import UUID

from django.db import connection

from agentops.audit.entries import Actor
from agentops.kernel.transitions import LostRace
from runs import services as runs
from runs.models import AgentRun

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
