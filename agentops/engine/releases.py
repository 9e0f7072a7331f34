"""A run that no worker of the present release can carry on: what a person can do with it, and what that would mean."""

from dataclasses import dataclass, field
from uuid import UUID

from agentops.audit.entries import Actor, record
from agentops.kernel.problems import Conflict
from agentops.kernel.transitions import swap
from agentops.sdk import agents as known_agents
from approvals.policy import published
from operations.moves import retried
from runs import holds, releases, services
from runs.models import AgentRun
from runs.states import BlockedOn

_CALLED = "The call of {tool} is answered with “there is no such tool”; the model goes on from there."
_AGENT = "The present release has no agent {agent}."
_ACTION = "An operation is open that was proposed as {action}; only a worker that has that version knows what to send."


@dataclass(frozen=True)
class Move:
    """What it would mean to go on under the present release: what is lost, or why it cannot be."""

    losses: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)

    @property
    def possible(self) -> bool:
        return not self.obstacles


@dataclass(frozen=True)
class Choices:
    """A run parked for a release may finish with the old one (bring back a worker that has it), be moved, or be cancelled."""

    release: str  # the digest of the one that it was begun under
    needs: list[str]
    move: Move


def choices(run: AgentRun) -> Choices | None:
    """What can be done with a run that is parked for a release; None where it is not."""
    if run.ending or run.is_terminal or BlockedOn.RELEASE not in run.blocked_on:
        return None
    return Choices(run.release.digest, list(run.needs), _verdict(run.needs))


def _verdict(needs: list[str]) -> Move:
    move = Move()
    for need in needs:
        kind, _, name = need.partition(":")
        match kind:
            case "tool":
                agent, _, tool = name.partition("/")
                move.losses.append(_CALLED.format(tool=tool))
                if known_agents.agent(agent) is None:
                    move.obstacles.append(_AGENT.format(agent=agent))
            case "agent" if known_agents.agent(name) is None:
                move.obstacles.append(_AGENT.format(agent=name))
            case "action":
                move.obstacles.append(_ACTION.format(action=name))
    return move


@retried
def move_run(tenant_id: int, run_id: UUID, *, actor: Actor, reason: str) -> AgentRun:
    """Let a run that is parked for a release go on under the present one. Raises NotFound, Conflict (not_parked, cannot_move)."""
    run = services.lock(tenant_id, run_id)
    found = choices(run)
    if found is None:
        raise Conflict(f"{run} does not wait for a release.", code="not_parked")
    agent = known_agents.agent(run.agent)
    if agent is None or not found.move.possible:
        raise Conflict(" ".join(found.move.obstacles or [_AGENT.format(agent=run.agent)]), code="cannot_move")
    release = releases.pinned(tenant_id, agent, published(tenant_id, agent))
    record(
        tenant_id,
        "run.moved",
        "run",
        run.public_id,
        actor,
        before={"release": run.release.digest},
        after={"release": release.digest},
        detail={"reason": reason, "losses": found.move.losses},
    )
    run = swap(run, run.status, release=release)
    return holds.unpark(run, actor, reason)
