"""The row of a run that carries on the work of one that has ended."""

from datetime import timedelta

from django.db import IntegrityError, transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7_after
from agentops.kernel.problems import Conflict
from agentops.sdk.agents import Agent
from agentops.tenancy import vault

from . import conversations, wakeups
from .events import Event, append
from .holds import require_agent
from .models import AgentRun
from .queries import input_text
from .releases import pinned
from .services import input_place


def start_again(
    source: AgentRun, agent: Agent, policies: str, *, actor: Actor, reason: str, steps: int
) -> AgentRun:
    """A queued run with the question, the labels and the key of the locked, ended `source`, under the present release.

    Its conversation has been locked before it (`conversations.locked_of`).

    What `source` has spent stays spent: the new run has what is left of each limit, or the limit anew where nothing is left.
    Raises AgentPaused, Conflict (dedupe_key_taken).
    """
    require_agent(source.tenant_id, source.agent)
    conversation = source.conversation
    newest = conversation.runs.order_by("-id").first() if conversation else None
    before = conversations.unended(conversation).exists() if conversation else False
    run_id = uuid7_after(newest.id if newest else None)
    key = vault.opened(source.data_key_id)
    asked = sealed.seal_json(key, input_place(run_id), {"text": input_text(source)})
    try:
        with transaction.atomic():
            run = AgentRun.objects.create(
                id=run_id,
                tenant_id=source.tenant_id,
                actor=source.actor,
                principal=source.principal,
                channel=source.channel,
                agent=source.agent,
                release=pinned(source.tenant_id, agent, policies),
                pool=source.pool,
                data_key_id=source.data_key_id,
                sealed_input=asked,
                conversation_id=source.conversation_id,
                retry_of=source,
                dedupe_key=source.dedupe_key,
                priority=source.priority,
                concurrency_key=source.concurrency_key,
                metadata=source.metadata,
                budget_microusd=_left(source.budget_microusd, source.spent_microusd),
                max_steps=_left(source.max_steps, source.steps_taken),
                deadline_at=now() + timedelta(seconds=agent.limits.deadline_seconds),
                trace_id=source.trace_id,
                slice_microusd=None if source.tenant.budget_microusd is None else 0,
                aftermath=conversation is not None,
                **({"ready_at": None} if before else {}),
            )
    except IntegrityError as error:
        if "run_dedupe_key_active_once" not in str(error):
            raise
        raise Conflict(
            f"Another run with the key {source.dedupe_key!r} is active; wait for its end, or cancel it.",
            code="dedupe_key_taken",
        ) from None
    said = {"agent": run.agent, "actor": run.actor, "channel": run.channel, "retry_of": source.public_id}
    append(run, Event("run.created", said))
    record(
        run.tenant_id,
        "run.retried",
        "run",
        source.public_id,
        actor,
        detail={"reason": reason, "run": run.public_id, "steps": steps},
    )
    wakeups.ring(run.pool)
    return run


def _left(limit: int, used: int) -> int:
    return limit - used if used < limit else limit
