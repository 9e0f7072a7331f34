"""The verbs on a run: start it, wake it, bring it to its end."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now, now
from agentops.kernel.ids import parse, uuid7_after
from agentops.kernel.problems import NotFound
from agentops.kernel.redaction import mask, mask_text
from agentops.kernel.sealed import Place
from agentops.kernel.transitions import swap
from agentops.sdk.agents import Agent
from agentops.tenancy import vault
from agentops.tenancy.models import ApiToken, Tenant
from agentops.tenancy.principals import Principal

from . import conversations, leases, wakeups
from .events import Event, append
from .holds import require_agent
from .models import AgentRun, InboxMessage, Slot
from .releases import pinned
from .states import TERMINAL, BlockedOn, RunStatus

MICROUSD_PER_CENT = 10_000


@dataclass(frozen=True)
class Start:
    """What a caller asks for. Money in cents of a US dollar, times in seconds; None takes the agent's own limit."""

    input: str
    actor: str = ""
    conversation_id: str | None = None
    dedupe_key: str | None = None
    budget_cents: int | None = None
    max_steps: int | None = None
    deadline_seconds: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    priority: int = 0  # smaller first, among the tenant's own
    concurrency_key: str = ""  # at most `concurrency_limit` runs under it work at the same time
    concurrency_limit: int = 1


def input_place(run_id: UUID) -> Place:
    return Place("runs_agentrun", str(run_id), "input")


def result_place(run_id: UUID) -> Place:
    return Place("runs_agentrun", str(run_id), "result")


def message_place(run_id: UUID, n: int) -> Place:
    return Place("runs_inboxmessage", f"{run_id}/{n}", "body")


def start_run(
    principal: Principal, agent: Agent, start: Start, *, trace_id: str, policies: str = ""
) -> tuple[AgentRun, bool]:
    """A queued run and True; or, where an active run has the same `dedupe_key`, that run and False.

    Row, event and audit entry share the caller's transaction; the doorbell rings after its commit. `policies` is the
    digest of the rules that decide about it. Raises AgentPaused.
    """
    tenant = principal.tenant
    active = _active(tenant.id, agent.name, start.dedupe_key)
    if active is not None:
        return active, False
    require_agent(tenant.id, agent.name)
    make_slot(tenant)
    conversation = conversations.locked(principal, start.conversation_id)
    newest = conversation.runs.order_by("-id").first() if conversation else None
    before = conversations.unended(conversation).last() if conversation else None
    run_id = uuid7_after(newest.id if newest else None)
    key = vault.opened(conversation.data_key_id) if conversation else vault.make(tenant.id, f"run:{run_id}")
    limits = agent.limits
    budget = MICROUSD_PER_CENT * (
        start.budget_cents if start.budget_cents is not None else limits.budget_cents
    )
    if tenant.budget_microusd is not None:  # a run without a limit of its own has the tenant's
        budget = min(budget or tenant.budget_microusd, tenant.budget_microusd)
    try:
        with transaction.atomic():
            run = AgentRun.objects.create(
                id=run_id,
                tenant=tenant,
                actor=start.actor or f"tenant:{tenant.slug}",
                principal=principal.name,
                channel=principal.channel,
                agent=agent.name,
                release=pinned(tenant.id, agent, policies),
                data_key_id=key.id,
                sealed_input=sealed.seal_json(key, input_place(run_id), {"text": start.input}),
                conversation=conversation,
                dedupe_key=start.dedupe_key,
                metadata=mask(start.metadata),
                priority=start.priority,
                **concurrency(agent, start.concurrency_key, start.concurrency_limit),
                budget_microusd=budget,
                max_steps=min(start.max_steps or limits.steps, limits.steps),
                deadline_at=now() + timedelta(seconds=start.deadline_seconds or limits.deadline_seconds),
                trace_id=trace_id,
                slice_microusd=None if tenant.budget_microusd is None else 0,
                aftermath=conversation is not None,
                **({"ready_at": None} if before else {}),
            )
    except IntegrityError as error:
        if "run_dedupe_key_active_once" not in str(error):
            raise
        raced = _active(tenant.id, agent.name, start.dedupe_key)
        if raced is None:
            raise
        return raced, False
    told = {"agent": run.agent, "actor": run.actor, "channel": run.channel}
    if before is not None:
        told["after"] = before.public_id
    append(run, Event("run.created", told))
    record(tenant.id, "run.started", "run", run.public_id, actor_of(principal), detail={"agent": run.agent})
    wakeups.ring(run.pool)
    return run, True


def make_slot(tenant: Tenant) -> None:
    """Whoever has no slot is never served: there is one before a tenant's first run."""
    Slot.objects.bulk_create([Slot(tenant=tenant)], ignore_conflicts=True)


def concurrency(agent: Agent, key: str = "", limit: int = 1) -> dict[str, Any]:
    """Under which key a run of `agent` works, and how many may at once: its starter's, else its author's."""
    if key or agent.limits.at_once is None:
        return {"concurrency_key": key, "concurrency_limit": limit}
    return {"concurrency_key": f"agent:{agent.name}", "concurrency_limit": agent.limits.at_once}


def actor_of(principal: Principal) -> Actor:
    """How a principal stands in audit entries: a token bound to a person acts on that person's behalf."""
    behalf = f"user:{principal.person.pk}" if principal.person and principal.token else ""
    return Actor(principal.name, principal.channel, behalf)


def requesters_of(run: AgentRun) -> list[str]:
    """The whole chain that asks: the actor, the token, the person behind it, the agent, and who started that run.

    Whoever made the request that a rerun takes up has asked as well, and so has whoever lets a run be retried.
    """
    chain = [run.actor, run.principal, f"agent:{run.agent}", *filter(None, [run.retried_by])]
    before = run.parent or run.rerun_of or run.retry_of
    if before is not None:
        chain += requesters_of(before)
    token_id = parse("tok", run.principal.removeprefix("token:"))
    person = (
        ApiToken.objects.filter(pk=token_id).values_list("person_id", flat=True).first() if token_id else None
    )
    if person is not None:
        chain.append(f"user:{person}")
    return list(dict.fromkeys(chain))


def _active(tenant_id: int, agent: str, dedupe_key: str | None) -> AgentRun | None:
    if dedupe_key is None:
        return None
    runs = AgentRun.objects.filter(tenant_id=tenant_id, agent=agent, dedupe_key=dedupe_key)
    return runs.exclude(status__in=TERMINAL).first()


def lock(tenant_id: int, run_id: UUID) -> AgentRun:
    """The run's row, locked until the transaction ends: first of all locks of whoever will write its events."""
    run = AgentRun.objects.select_for_update(no_key=True).filter(tenant_id=tenant_id, pk=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    return run


# Whatever the status: a sender never looks whether the run sleeps, so nothing can slip in between. Only a run whose turn
# in its conversation has not come (queued, and never due) is not made due by anything else than its turn.
_WAKE = """
UPDATE runs_agentrun SET inbox_seq = inbox_seq + 1,
  ready_at = CASE WHEN started_at IS NULL AND ready_at IS NULL AND %s <> 'follow_up' THEN NULL ELSE agentops_now() END
WHERE id = %s AND finished_at IS NULL AND ending = '' RETURNING inbox_seq, tenant_id, data_key_id, pool
"""


@transaction.atomic
def wake(run_id: UUID, kind: str, body: dict[str, Any], *, dedupe_key: str | None = None) -> bool:
    """Leave a message in the run's inbox and make the run due; it stays there, in order, until the run has taken it.

    False, and nothing is done, where the run ends or has ended, or where it has this message already (`dedupe_key`).
    """
    with connection.cursor() as cursor:
        if dedupe_key:  # the row first: of two senders at once the second one sees what the first has left
            cursor.execute("SELECT 1 FROM runs_agentrun WHERE id = %s FOR NO KEY UPDATE", [run_id])
            if InboxMessage.objects.filter(run_id=run_id, kind=kind, dedupe_key=dedupe_key).exists():
                return False
        cursor.execute(_WAKE, [kind, run_id])
        row = cursor.fetchone()
    if row is None:
        return False
    number, tenant_id, data_key_id, pool = row
    InboxMessage.objects.create(
        run_id=run_id,
        n=number,
        tenant_id=tenant_id,
        kind=kind,
        dedupe_key=dedupe_key,
        sealed_body=sealed.seal_json(vault.opened(data_key_id), message_place(run_id, number), body),
    )
    wakeups.ring(pool)
    return True


def approvals_left(run: AgentRun, still_open: bool) -> AgentRun:
    """After an approval of the locked `run` has closed: without an open one it waits for no person, only for its effect."""
    if still_open:
        return run
    if run.status != RunStatus.WAITING_FOR_APPROVAL:
        if run.lease_owner is not None:  # it may be about to park on what it saw: let it look again
            wake(run.id, "approval", {})
        return run
    kinds = {kind for kind in run.blocked_on if kind != BlockedOn.APPROVAL} | {BlockedOn.OPERATION}
    return swap(run, RunStatus.RUNNING, blocked_on=sorted(kinds))


def waits_for(run: AgentRun, kind: BlockedOn, does: bool) -> AgentRun:
    """Say of a locked run that is parked what it waits for too, or no more. One at work will say so itself when it parks."""
    if run.is_terminal or run.ending or run.lease_owner is not None or (kind in run.blocked_on) == does:
        return run
    kinds = {*run.blocked_on, kind} if does else {*run.blocked_on} - {kind}
    return swap(run, run.status, blocked_on=sorted(kinds))


def begin_ending(run: AgentRun, ending: str, *, code: str, actor: Actor, reason: str) -> AgentRun:
    """First move of an end, on a locked run: no new step, turn or proposal; whoever holds a lease has lost it."""
    changes: dict[str, Any] = {
        "ending": ending,
        "ending_actor": actor.name,
        "ending_reason": mask_text(reason)[:500],
        "error_code": code,
        "error_detail": mask_text(reason)[:500] if ending == "failed" else "",
        **leases.taken_away(run.lease_epoch),
        "deadline_at": None,
        "paused_at": None,
        "paused_by": "",
        "pause_reason": "",
        "needs": [],
        "blocked_on": ["operation"] if run.open_effects else [],
    }
    if ending == "cancelled":
        changes["cancel_requested_at"] = Now()
    to = RunStatus.RUNNING if run.status == RunStatus.WAITING_FOR_APPROVAL else run.status
    run = swap(run, to, **changes)
    wakeups.control_changed()
    with connection.cursor() as cursor:
        cursor.execute(leases.INTERRUPT, {"run_id": run.id, "why": f"run_{ending}"})
    if ending == "cancelled":
        append(
            run,
            Event("run.cancel_requested", {"actor": actor.name, "reason": run.ending_reason, "code": code}),
        )
    record(
        run.tenant_id, f"run.{ending}", "run", run.public_id, actor, detail={"reason": reason, "code": code}
    )
    return run


def finish_ending(run: AgentRun) -> AgentRun:
    """Second move of an end, on a locked run: terminal once no effect is open; the terminal event is the last."""
    if not run.ending or run.is_terminal or run.open_effects:
        return run
    run = swap(run, run.ending, finished_at=Now(), blocked_on=[], ready_at=None)
    data = {
        "code": run.error_code,
        "detail": run.error_detail or run.ending_reason,
        "actor": run.ending_actor,
    }
    append(run, Event(f"run.{run.status}", data))
    return run
