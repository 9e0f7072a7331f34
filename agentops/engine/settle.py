"""Bring one operation to its receipt: propose it where it is new, send it where it may go, else say what it waits for."""

from collections.abc import Callable
from typing import Any, assert_never
from uuid import UUID

from agentops.audit.entries import Actor
from agentops.kernel.clock import now
from agentops.sdk.errors import JournalMismatch, OperationRefused, OutcomeUnknown, Retryable, Terminal
from agentops.sdk.values import Receipt
from agentops.telemetry.logs import bind_contextvars
from approvals import policy
from approvals.models import Approval
from approvals.services import AUTHORITY, may_ask_again, submit
from operations import patience, queries
from operations.connectors.base import CheckFailed
from operations.connectors.registry import CONNECTORS
from operations.dispatch import Departure, call_of, commit_attempt, dispatch, send
from operations.incidents import lacks_credential
from operations.models import Interest, Operation
from operations.moves import retried
from operations.services import Intended, intend, of_step, propose, read_facts, same_intent
from operations.states import FINAL, OperationStatus
from runs.models import AgentRun
from runs.services import lock

from . import differing
from .live import LeaseLost, LiveRun, Waiting

_S = OperationStatus
TRIES = 3  # of a proposal that others overtake


type Fence = Callable[[], None]


def settle(
    live: LiveRun,
    step: str,
    action: str,
    fence: Fence,
    *,
    target: str,
    params: dict[str, Any],
    reference: str,
    told_unknown: str = "",
) -> Receipt:
    """The receipt of the operation at `step`; raises Waiting while it is on its way, OperationRefused where it ended, and
    OutcomeUnknown where its patience is over.

    `told_unknown` is the operation that the tool was told of so in an earlier life: it is told the same again. `fence` raises LeaseLost where the call may propose nothing more; it is asked under the run's lock.
    """
    run = AgentRun.objects.select_related("tenant").get(pk=live.id)
    intended = intend(run, action, target=target, params=params, reference=reference)
    operation = of_step(run, step)
    if operation is None:
        operation = _begin(live, run, step, intended, fence)
    else:
        try:
            same_intent(operation, intended)
        except JournalMismatch:
            instead = differing.give_up(
                live, operation, step
            )  # raises the same where it is too late for that
            operation = _begin(live, run, step, intended, fence, instead)
    bind_contextvars(operation_id=operation.public_id)
    if operation.public_id == told_unknown:
        raise OutcomeUnknown(told_unknown)
    return bring(operation, live.owner, live.id)


def _begin(
    live: LiveRun,
    run: AgentRun,
    step: str,
    intended: Intended,
    fence: Fence,
    instead: Approval | None = None,
) -> Operation:
    """Read the facts, ask policy, and record the intent; where policy allows it, its first attempt in the same commit.

    `instead`: the question about something else that stood at this step; whatever rules say, people decide then.
    """
    actor = Actor(f"agent:{run.agent}", "worker", on_behalf_of=run.actor)
    for _ in range(TRIES):
        try:
            read, verdict = policy.consider(run, read_facts(intended))
            operation, departure = _record(live, step, read, verdict, actor, fence, instead)
        except CheckFailed as failed:
            if failed.retryable:
                raise Retryable(failed.detail, code=failed.code) from failed
            raise Terminal(failed.detail, code=failed.code) from failed
        except policy.Moved:
            continue
        return operation if departure is None else send(departure)
    raise Retryable("Others propose the same at this moment.", code="policy_moved")


@retried
def _record(
    live: LiveRun,
    step: str,
    intended: Intended,
    verdict: policy.Verdict,
    actor: Actor,
    fence: Fence,
    instead: Approval | None,
) -> tuple[Operation, Departure | None]:
    run = lock(live.tenant_id, live.id)
    if run.lease_owner != live.owner or run.lease_epoch != live.epoch or run.ending:
        raise LeaseLost(live.public_id)
    fence()
    if run.paused_at is not None:  # a paused run proposes nothing; the call is made again once it is resumed
        live.paused = True
        raise Waiting()
    again = may_ask_again(verdict, intended.facts)
    proposed = propose(run, step, intended, actor, may_ask_again=again)
    operation = proposed.operation
    if not proposed.is_new:
        return operation, None
    submit(proposed.locked, verdict, intended.facts, actor, instead=instead)
    if operation.status != _S.APPROVED or operation.dispatch_after is not None:
        return operation, None
    call = call_of(operation)
    request = CONNECTORS[operation.connection.connector].build(call)
    return operation, commit_attempt(proposed.locked, call, request, live.owner)


@retried
def proposed_by(live: LiveRun, call: str) -> tuple[int, set[str]]:
    """How many operations an abandoned call has, and what the open ones wait for; under the lock, so that none is just coming."""
    run = lock(live.tenant_id, live.id)
    interests = Interest.objects.filter(run_id=run.id, step__startswith=f"{call}/")
    found = list(interests.values_list("operation__status", flat=True))
    kinds = {"approval" if status == _S.PENDING else "operation" for status in found if status not in FINAL}
    return len(found), kinds


def bring(operation: Operation, worker: str, run_id: UUID | None = None) -> Receipt:
    """One arm per status: what the operation is brings its receipt, its end, or what `run_id` waits for."""
    status = _S(operation.status)
    match status:
        case _S.SUCCEEDED:
            return receipt_of(operation)
        case _S.PENDING:
            raise Waiting("approval")
        case _S.APPROVED:
            if _is_due(operation):
                after = dispatch(operation.id, AUTHORITY, worker=worker)
                if after.status != _S.APPROVED:
                    return bring(after, worker, run_id)
            lacks = ["credential"] if lacks_credential(operation) else []
            return _in_patience(operation, worker, run_id, *lacks)
        case _S.EXECUTING | _S.UNKNOWN | _S.ESCALATED:
            return _in_patience(operation, worker, run_id)
        case _S.FAILED | _S.REJECTED | _S.CANCELLED | _S.EXPIRED:
            raise OperationRefused(operation.public_id, status.value, operation.error_code, _why(operation))
        case _:
            assert_never(status)


def _in_patience(operation: Operation, worker: str, run_id: UUID | None, *lacks: str) -> Receipt:
    """Wait for the outcome; longer than its action is waited for, it is told as unknown, in the run whose effect it is.

    Only that run is held open by it. One that has joined could end on such an answer, so it waits on.
    """
    left = patience.left(operation) if operation.run_id == run_id else None
    if left is None or left > 0:
        raise Waiting("operation", *lacks, until=left)
    operation = patience.end(operation.id)
    if patience.is_in_doubt(operation):
        raise OutcomeUnknown(operation.public_id)
    return bring(operation, worker, run_id)  # found out at the last moment


def _is_due(operation: Operation) -> bool:
    at = now()
    return all(
        moment is None or moment <= at for moment in (operation.dispatch_after, operation.next_attempt_at)
    )


def _why(operation: Operation) -> str:
    """The end in words that an agent can pass on; nobody's silence is told as a refusal."""
    match operation.status:
        case _S.EXPIRED:
            return "Nobody decided in time. This is not a refusal; it may be asked again."
        case _S.CANCELLED:
            return "It was cancelled before anything was sent."
    return operation.error_detail or operation.error_code.replace("_", " ")


def receipt_of(operation: Operation) -> Receipt:
    proof = queries.receipt(operation) or {}
    return Receipt(
        operation_id=operation.public_id,
        action=operation.action,
        target=operation.target_text,
        status=operation.status,
        provider_ref=operation.provider_ref or None,
        amount_minor=operation.amount_minor,
        currency=operation.currency or None,
        detail={name: value for name, value in proof.items() if name != "provider_ref"},
    )
