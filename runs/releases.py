"""What a run's decisions are made with, by content: prompt, tools, policies, model and limits; and what of it is here."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.conf import settings

from agentops.sdk.agents import Agent, agents
from agentops.sdk.tools import digest_of

from .models import AgentRelease

type Manifest = Mapping[str, Any]  # names and digests, no prompt text


def manifest_of(agent: Agent, policies: str) -> Manifest:
    """`policies`: the digest of the tenant's published rules, which live in the database and not in a process."""
    return {
        "agent": agent.digest,
        "prompt": digest_of(agent.instructions),
        "tools": {tool.name: tool.digest for tool in agent.tools},
        "model": agent.model or settings.AGENTOPS_MODEL,
        "limits": asdict(agent.limits),
        "policies": policies,
    }


def pinned(tenant_id: int, agent: Agent, policies: str) -> AgentRelease:
    """The release that a run of `agent` starts under now: the same content is the same release."""
    manifest = manifest_of(agent, policies)
    release, _ = AgentRelease.objects.get_or_create(
        tenant_id=tenant_id,
        agent=agent.name,
        digest=digest_of(manifest),
        defaults={"manifest": manifest},
    )
    return release


def here_instead_of(manifest: Manifest, agent: Agent) -> str:
    """The digest of this process's release of `agent`; empty where it is the one of `manifest`."""
    here = manifest_of(agent, manifest.get("policies", ""))
    return "" if here == manifest else digest_of(here)


def has() -> list[str]:
    """What this process can carry on of agents: the names that `AgentRun.needs` is compared with."""
    return [
        name
        for agent in agents()
        for name in (f"agent:{agent.name}", *(f"tool:{agent.name}/{tool.name}" for tool in agent.tools))
    ]
