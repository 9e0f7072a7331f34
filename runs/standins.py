"""A run in place of one whose record is lost, so that what it did outside has a place and its page."""

from agentops.audit.entries import Actor
from agentops.kernel import sealed
from agentops.kernel.ids import uuid7
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant

from .events import Event, append
from .models import AgentRelease, AgentRun
from .services import begin_ending, input_place

AGENT = "unknown"


def stand_in(tenant: Tenant, actor: Actor, why: str) -> AgentRun:
    """A run that nobody carries on and that is ending already; it has ended when the effects in its name have.

    Call it inside the transaction that gives it one.
    """
    release, _ = AgentRelease.objects.get_or_create(
        tenant_id=tenant.id, agent=AGENT, digest=AGENT, defaults={"manifest": {}}
    )
    run_id = uuid7()
    key = vault.make(tenant.id, f"run:{run_id}")
    run = AgentRun.objects.create(
        id=run_id,
        tenant=tenant,
        actor=f"tenant:{tenant.slug}",
        principal=actor.name,
        channel=actor.channel,
        agent=AGENT,
        release=release,
        data_key_id=key.id,
        sealed_input=sealed.seal_json(key, input_place(run_id), {"text": why}),
        budget_microusd=0,
        max_steps=1,
        ready_at=None,
        trace_id=run_id.hex,
    )
    append(run, Event("run.created", {"agent": AGENT, "actor": run.actor, "channel": run.channel}))
    return begin_ending(run, "failed", code="record_lost", actor=actor, reason=why)
