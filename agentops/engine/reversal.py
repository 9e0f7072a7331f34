"""Compensation: a person has a done operation undone, by a new one that is linked to it, decided and sent like any other."""

import secrets
from uuid import UUID

from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import redaction
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.sdk import agents as known_agents
from agentops.tenancy.models import User
from agentops.tenancy.principals import Principal
from approvals.policy import published
from operations.connectors.registry import CONNECTORS, reversal_of
from operations.dispatch import call_of, loaded
from operations.models import Operation
from operations.states import OperationStatus
from runs.models import AgentRun
from runs.services import Start, start_run

from . import direct

MAX_REASON_CHARS = 2_000


def reverse(tenant_id: int, operation_id: UUID, *, person: User, reason: str, channel: str) -> AgentRun:
    """The run that proposes what undoes an operation, in the name of `person`, who may not decide it; one at a time.

    Raises NotFound; NotYours (no_right); Invalid (reason_required); Conflict (not_done, undone_already, cannot_be_undone,
    agent_paused).
    """
    if not Operation.objects.filter(tenant_id=tenant_id, pk=operation_id).exists():
        raise NotFound("There is no such operation.")
    operation = loaded(operation_id)
    tenant = operation.tenant
    if not person.is_active or not person.has_perm("tenancy.settle_operations", tenant):
        raise NotYours(f"You may not have operations of {tenant} undone.", code="no_right")
    reason = redaction.reason(reason, MAX_REASON_CHARS)
    if not reason:
        raise Invalid("Say why it is to be undone; it is kept.", code="reason_required")
    agent = known_agents.agent(direct.NAME)
    assert agent is not None, "registered at every start"
    principal = Principal(tenant, f"user:{person.pk}", channel, frozenset(), person=person)
    asked = Start(input=_what_undoes(operation), dedupe_key=f"reverse:{operation}")
    rules = published(tenant.id, agent)
    with transaction.atomic():
        run, is_new = start_run(principal, agent, asked, trace_id=secrets.token_hex(16), policies=rules)
        if is_new:
            actor = Actor(principal.name, channel)
            told = {"reason": reason, "run": run.public_id}
            record(tenant_id, "operation.undo_asked", "operation", operation.public_id, actor, detail=told)
    return run


def _what_undoes(operation: Operation) -> str:
    if operation.status != OperationStatus.SUCCEEDED:
        raise Conflict(f"{operation} is {operation.status}: there is nothing to undo.", code="not_done")
    if operation.reversed_at is not None:
        raise Conflict(
            f"{operation} was undone at {operation.reversed_at:%Y-%m-%d %H:%M} UTC.", code="undone_already"
        )
    action = reversal_of(operation.action)
    if action is None:
        raise Conflict(
            f"Nothing undoes {operation.action} at {operation.connection.name}; what is to be done now is another operation.",
            code="cannot_be_undone",
        )
    params = CONNECTORS[operation.connection.connector].reversal(call_of(operation))
    return direct.asking(
        action.name, target=operation.target_text, params=dict(params), reference=operation.public_id
    )
