"""Who reads a stream, and whether they still may: asked at the door and again while the stream is open."""

from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user

from agentops.audit.entries import Actor
from agentops.kernel.ids import parse
from agentops.kernel.problems import NotFound, NotYours, Unauthorized
from agentops.tenancy import bearer
from agentops.tenancy.models import User
from approvals.queries import tenants_for
from runs.models import AgentRun
from runs.services import actor_of

# Withdrawn rights, a token revoked and a session ended all come to one of these.
REFUSALS = (Unauthorized, NotYours, NotFound)


@dataclass(frozen=True)
class TokenCaller:
    """A caller by its `Authorization` header; `channel` is `rest` or `websocket`."""

    authorization: str | None
    channel: str

    def run(self, run_id: str) -> AgentRun:
        """The run shown as `run_id`; raises one of REFUSALS."""
        principal = bearer.principal_of(self.authorization, self.channel)
        bearer.require(principal, "runs:read")
        return _found(run_id, [principal.tenant.id])

    def canceller(self, run: AgentRun) -> Actor:
        principal = bearer.principal_of(self.authorization, self.channel)
        bearer.require(principal, "runs:write")
        return actor_of(principal)


@dataclass(frozen=True)
class SessionCaller:
    """A person by the session of the admin; read anew each time, so that a sign-out counts at once."""

    session_key: str | None

    def person(self) -> User:
        engine = import_module(settings.SESSION_ENGINE)
        holder = SimpleNamespace(session=engine.SessionStore(self.session_key))
        user = get_user(cast(Any, holder))
        if not isinstance(user, User):
            raise Unauthorized("Sign in first.")
        return user

    def run(self, run_id: str) -> AgentRun:
        tenants = tenants_for(self.person(), "view_runs")
        return _found(run_id, tenants.values_list("id", flat=True))

    def canceller(self, run: AgentRun) -> Actor:
        person = self.person()
        if not person.has_perm("tenancy.cancel_runs", run.tenant):
            raise NotYours(
                f"You may not cancel runs of {run.tenant.name}; ask an administrator of that tenant."
            )
        return Actor(f"user:{person.pk}", "websocket")


type Caller = TokenCaller | SessionCaller


def may_still_read(caller: Caller, run_id: str) -> bool:
    try:
        caller.run(run_id)
    except REFUSALS:
        return False
    return True


def _found(run_id: str, tenant_ids: Any) -> AgentRun:
    key: UUID | None = parse("run", run_id)
    run = (
        AgentRun.objects.filter(pk=key, tenant_id__in=tenant_ids).select_related("tenant").first()
        if key
        else None
    )
    if run is None:
        raise NotFound(f"There is no run {run_id[:60]!r}. GET /v1/runs lists the runs you may see.")
    return run
