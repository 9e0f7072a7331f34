"""Retrying a run: a parked one goes on where it stands, an ended one goes on in a new run that inherits its work."""

import re
from dataclasses import dataclass
from uuid import UUID

from agentops.audit.entries import Actor
from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict
from agentops.sdk import agents as known_agents
from agentops.sdk.agents import Agent
from agentops.tenancy import vault
from approvals.policy import published
from operations.models import Interest
from operations.moves import retried
from operations.states import OperationStatus
from runs import conversations, holds, retries, services
from runs.models import AgentRun, Step
from runs.states import BLOCKED_FOR_PERSON, BlockedOn, RunStatus, StepKind, StepStatus

from .loading import step_place
from .stepper import REPEATED_CALL, go_on_key

_TURN = re.compile(r"turn-(\d+)")
# What ended because its run ended, or because nobody answered, is asked anew; every other outcome is the retry's too.
_ASKED_ANEW = (OperationStatus.CANCELLED, OperationStatus.EXPIRED)


@dataclass(frozen=True)
class RetryReceipt:
    """What goes on, and with what: `run` is the parked run itself, or a new one."""

    run: AgentRun
    source: AgentRun
    requested_by: str
    reason: str
    steps: int  # completed steps that are read back, not done again
    operations: list[str]  # whose outcome it inherits

    @property
    def is_new(self) -> bool:
        return self.run.pk != self.source.pk


@retried
def retry_run(tenant_id: int, run_id: UUID, *, actor: Actor, reason: str) -> RetryReceipt:
    """Let a run go on that stopped for a person, or carry on the work of one that failed or was cancelled.

    Nothing that it completed is done or billed again, and no effect is made twice. Raises NotFound, AgentPaused, Conflict
    (not_stopped, still_ending, completed, retried_already, no_agent, dedupe_key_taken).
    """
    conversations.locked_of(run_id)
    run = services.lock(tenant_id, run_id)
    if not run.is_terminal:
        return _go_on(run, actor, reason)
    if run.status == RunStatus.COMPLETED:
        raise Conflict(f"{run} has its answer; start a new run to ask again.", code="completed")
    later = AgentRun.objects.filter(tenant_id=tenant_id, retry_of_id=run.id).first()
    if later is not None:
        raise Conflict(f"{run} was retried as {later} already; look at that one.", code="retried_already")
    agent = known_agents.agent(run.agent)
    if agent is None:
        raise Conflict(
            f"The present release has no agent {run.agent}; bring it back, then retry.", code="no_agent"
        )
    return _again(run, agent, actor, reason)


def _go_on(run: AgentRun, actor: Actor, reason: str) -> RetryReceipt:
    if run.ending:
        raise Conflict(
            f"{run} is being ended and waits for an operation whose outcome is open; retry it then.",
            code="still_ending",
        )
    if run.lease_owner is not None or not BLOCKED_FOR_PERSON.intersection(run.blocked_on):
        raise Conflict(f"{run} has not stopped; there is nothing to retry.", code="not_stopped")
    if BlockedOn.OPERATOR in run.blocked_on:
        _let_go_on(run, actor)
    run = holds.unpark(run, actor, reason)
    return RetryReceipt(run, run, actor.name, reason, _completed(run), _inherited(run))


def _let_go_on(run: AgentRun, actor: Actor) -> None:
    """Write down, at the turn where the locked run stopped, that a person let it go on."""
    turns = [_TURN.fullmatch(key) for key in _keys(run)]
    key = go_on_key(max((int(turn.group(1)) for turn in turns if turn), default=0))
    said = sealed.seal_json(vault.opened(run.data_key_id), step_place(run.id, key), {"by": actor.name})
    Step.objects.create(
        run=run,
        key=key,
        tenant_id=run.tenant_id,
        kind=StepKind.STEP,
        name="go-on",
        status=StepStatus.COMPLETED,
        sealed_result=said,
        ended_at=Now(),
    )


def _again(source: AgentRun, agent: Agent, actor: Actor, reason: str) -> RetryReceipt:
    run = retries.start_again(
        source,
        agent,
        published(source.tenant_id, agent),
        actor=actor,
        reason=reason,
        steps=_completed(source),
    )
    inherit(source, run)
    if source.error_code == REPEATED_CALL:  # it had stopped for a person, and here one is
        _let_go_on(run, actor)
    return RetryReceipt(run, source, actor.name, reason, _completed(source), _inherited(run))


def inherit(source: AgentRun, run: AgentRun) -> None:
    """What stands for operations in `source` stands for them in `run`, which retries it."""
    for interest in Interest.objects.filter(run_id=source.id).exclude(operation__status__in=_ASKED_ANEW):
        Interest.objects.create(
            run_id=run.id, step=interest.step, tenant_id=run.tenant_id, operation_id=interest.operation_id
        )


def _keys(run: AgentRun) -> list[str]:
    """The keys of what the run, and those that it retries, have finished."""
    done = Step.objects.filter(run__in=retries.line_of(run), sealed_result__isnull=False)
    return sorted(set(done.values_list("key", flat=True)))


def _completed(run: AgentRun) -> int:
    return len(_keys(run))


def _inherited(run: AgentRun) -> list[str]:
    interests = Interest.objects.filter(run_id=run.id).select_related("operation").order_by("operation_id")
    return list(dict.fromkeys(interest.operation.public_id for interest in interests))
