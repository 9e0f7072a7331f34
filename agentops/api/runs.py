"""Runs over REST: start one, look at it, cancel it."""

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status

from agentops.engine.control import AlreadyEnded, cancel_run
from agentops.kernel.problems import Invalid, NotFound
from agentops.sdk import agents as known_agents
from agentops.sdk.agents import Agent
from agentops.telemetry.requests import trace_id
from agentops.tenancy.bearer import require_right
from agentops.tenancy.principals import Principal
from approvals.policy import published
from runs import idempotency, queries
from runs.limits import leave_room
from runs.models import AgentRun
from runs.services import Start, actor_of, start_run

from . import mapping, shapes
from .door import BearerToken, caller
from .idempotency_key import PARAMETER as IDEMPOTENCY_KEY
from .idempotency_key import key_of

ROUTE = "POST /v1/runs"
NO_REASON = shapes.CancelRun()

router = Router(tags=["Runs"])


@router.post(
    "/runs",
    auth=BearerToken("runs:write"),
    response={201: shapes.Started, 200: shapes.Started},
    operation_id="startRun",
    summary="Start a run",
    openapi_extra={"parameters": [IDEMPOTENCY_KEY]},
)
def start(request: HttpRequest, asked: shapes.StartRun) -> HttpResponse:
    """Stores the run and answers at once; a worker advances it. The same key with the same body gets the same answer
    again, byte for byte, for 7 days, with `Idempotency-Replayed: true` and the run's present state in `Run-Status`.
    """
    principal = caller(request)
    require_right(principal, "control_runs")
    key = key_of(request)
    agent = _agent(asked.agent)
    given = asked.model_dump(exclude={"agent"})
    wanted = Start(**{**given, "actor": asked.actor or ""})

    def begin() -> idempotency.Answer:
        rules = published(principal.tenant.id, agent)
        run, is_new = start_run(principal, agent, wanted, trace_id=trace_id(request), policies=rules)
        if is_new:
            leave_room(principal.tenant)
        return idempotency.Answer(
            status=201 if is_new else 200,
            body=mapping.started(run).model_dump_json().encode(),
            headers={"Content-Type": "application/json", "Location": mapping.status_url(run)},
            run=run,
        )

    answer = idempotency.once(principal, ROUTE, key, asked.model_dump(), begin)
    headers = answer.headers
    if answer.replayed and answer.run is not None:
        headers = {**headers, "Idempotency-Replayed": "true", "Run-Status": answer.run.status}
    return HttpResponse(answer.body, status=answer.status, headers=headers)


def _agent(name: str) -> Agent:
    agent = known_agents.offered(name)
    if agent is None:
        known = ", ".join(agent.name for agent in known_agents.agents())
        raise Invalid(
            f"There is no agent {name!r}. Name one of: {known}.",
            code="unknown_agent",
            errors=[{"pointer": "/agent", "detail": f"One of: {known}."}],
        )
    return agent


@router.get(
    "/runs/{run_id}",
    auth=BearerToken("runs:read"),
    response=shapes.Run,
    exclude_unset=True,
    operation_id="getRun",
    summary="Look at a run",
)
def show(request: HttpRequest, run_id: str) -> shapes.Run:
    """Status, result, cost, open approvals and operations. Without `approvals:read` there are no `pending_approvals`,
    without `operations:read` no receipts.
    """
    principal = caller(request)
    return mapping.run(find_run(principal, run_id), principal)


@router.post(
    "/runs/{run_id}/cancel",
    auth=BearerToken("runs:write"),
    response={200: shapes.Cancelled, 202: shapes.Cancelled},
    exclude_unset=True,
    operation_id="cancelRun",
    summary="Cancel a run",
)
def cancel(
    request: HttpRequest, run_id: str, asked: shapes.CancelRun = NO_REASON
) -> Status[shapes.Cancelled]:
    """Nothing new begins and nothing unsent is sent. The answer is the receipt of effects: 202 while one is still
    open, else 200. A run that has ended answers 409, with its receipt under `receipt`.
    """
    principal = caller(request)
    require_right(principal, "cancel_runs")
    run = find_run(principal, run_id)
    try:
        receipt = cancel_run(run.tenant_id, run.id, actor=actor_of(principal), reason=asked.reason)
    except AlreadyEnded as ended:
        ended.extra["receipt"] = mapping.cancelled(ended.receipt).model_dump(exclude_unset=True)
        raise
    return Status(202 if receipt.has_open_effects else 200, mapping.cancelled(receipt))


def find_run(principal: Principal, run_id: str) -> AgentRun:
    """The run that the caller names; malformed, unknown and another tenant's ids are not told apart."""
    mine = queries.for_principal(principal).select_related("conversation", "release")
    run = mapping.named(mine, "run", run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id}. Check the id that POST /v1/runs answered.")
    return run
