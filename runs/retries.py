"""The row of a run that takes up the request of one that has ended: with its work, or from the beginning."""

import secrets
from datetime import timedelta
from typing import Any

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


def line_of(run: AgentRun) -> list[AgentRun]:
    """The run, the one that it retries, and so on: whose journals it reads, the newest first."""
    line = [run]
    while line[-1].retry_of is not None:
        line.append(line[-1].retry_of)
    return line


def start_again(
    source: AgentRun, agent: Agent, policies: str, *, actor: Actor, reason: str, steps: int
) -> AgentRun:
    """A queued run with the question, the labels and the key of the locked, ended `source`, under the present release.

    What `source` and its children have spent stays spent: the new run has what is left of each limit, or the limit anew where
    nothing is left. Its principal stays; whoever retries it has asked for what it proposes as well.
    Raises AgentPaused, Conflict (dedupe_key_taken).
    """
    run = _taken_up(
        source,
        agent,
        policies,
        input_text(source),
        retry_of=source,
        retried_by=actor.name,
        principal=source.principal,
        channel=source.channel,
        dedupe_key=source.dedupe_key,
        budget_microusd=_left(source.budget_microusd, source.spent_microusd + source.given_microusd),
        max_steps=_left(source.max_steps, source.steps_taken),
        trace_id=source.trace_id,
    )
    _tell(source, run, "run.retried", "retry_of", actor, {"reason": reason, "steps": steps})
    return run


def start_anew(
    source: AgentRun, agent: Agent, policies: str, *, actor: Actor, reason: str, text: str | None
) -> AgentRun:
    """A queued run that takes up the request of the locked, ended `source` from the beginning: nothing is read back.

    With `text` it asks that instead; then it is another request, and has not the key of the first. Whoever starts it has
    asked for what it proposes. Raises AgentPaused, Conflict (dedupe_key_taken).
    """
    first = line_of(source)[-1]  # a retry has only what was left of its limits
    run = _taken_up(
        source,
        agent,
        policies,
        input_text(source) if text is None else text,
        rerun_of=source,
        principal=actor.name,
        channel=actor.channel,
        dedupe_key=source.dedupe_key if text is None else None,
        budget_microusd=first.budget_microusd,
        max_steps=min(first.max_steps, agent.limits.steps),
        trace_id=secrets.token_hex(16),
    )
    verb = "run.rerun" if text is None else "run.forked"
    _tell(source, run, verb, "rerun_of", actor, {"reason": reason})
    return run


def _taken_up(source: AgentRun, agent: Agent, policies: str, text: str, **fields: Any) -> AgentRun:
    """The row. The conversation of `source` has been locked before it (`conversations.locked_of`)."""
    require_agent(source.tenant_id, source.agent)
    conversation = source.conversation
    newest = conversation.runs.order_by("-id").first() if conversation else None
    before = conversations.unended(conversation).exists() if conversation else False
    run_id = uuid7_after(newest.id if newest else None)
    key = vault.opened(source.data_key_id)
    try:
        with transaction.atomic():
            return AgentRun.objects.create(
                id=run_id,
                tenant_id=source.tenant_id,
                actor=source.actor,
                agent=source.agent,
                release=pinned(source.tenant_id, agent, policies),
                pool=source.pool,
                data_key_id=source.data_key_id,
                sealed_input=sealed.seal_json(key, input_place(run_id), {"text": text}),
                conversation_id=source.conversation_id,
                priority=source.priority,
                concurrency_key=source.concurrency_key,
                concurrency_limit=source.concurrency_limit,
                metadata=source.metadata,
                deadline_at=now() + timedelta(seconds=agent.limits.deadline_seconds),
                slice_microusd=None if source.tenant.budget_microusd is None else 0,
                aftermath=conversation is not None,
                **fields,
                **({"ready_at": None} if before else {}),
            )
    except IntegrityError as error:
        if "run_dedupe_key_active_once" not in str(error):
            raise
        raise Conflict(
            f"Another run with the key {source.dedupe_key!r} is active; wait for its end, or cancel it.",
            code="dedupe_key_taken",
        ) from None


def _tell(
    source: AgentRun, run: AgentRun, verb: str, link: str, actor: Actor, detail: dict[str, Any]
) -> None:
    said = {"agent": run.agent, "actor": run.actor, "channel": run.channel, link: source.public_id}
    append(run, Event("run.created", said))
    record(run.tenant_id, verb, "run", source.public_id, actor, detail={**detail, "run": run.public_id})
    wakeups.ring(run.pool)


def _left(limit: int, used: int) -> int:
    return limit - used if used < limit else limit
