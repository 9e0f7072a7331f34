"""Who reads a stream, and whether they still may: asked at the door and again while the stream is open."""

from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import QuerySet

from agentops.audit.entries import Actor
from agentops.kernel.ids import parse
from agentops.kernel.problems import NotFound, NotYours, Unauthorized
from agentops.tenancy import bearer, rates
from agentops.tenancy.models import User
from agentops.tenancy.principals import Principal
from runs import queries
from runs.models import AgentRun
from runs.services import actor_of

# Rights withdrawn, a token revoked and a session ended all come to one of these.
REFUSALS = (Unauthorized, NotYours, NotFound)


@dataclass(frozen=True)
class TokenCaller:
    """A caller by its `Authorization` header; `channel` is `rest` or `websocket`."""

    authorization: str
    channel: str

    def principal(self, scope: str) -> Principal:
        principal = bearer.principal_of(self.authorization, self.channel)
        bearer.require(principal, scope)
        return principal

    def run(self, run_id: str) -> AgentRun:
        """The run shown as `run_id`; raises one of REFUSALS."""
        return _found(queries.for_principal(self.principal("runs:read")), run_id)

    def canceller(self, run: AgentRun) -> Actor:
        """Who is recorded as cancelling `run`; raises one of REFUSALS where this caller may not."""
        principal = self.principal("runs:write")
        bearer.require_right(principal, "cancel_runs")
        return actor_of(principal)


@dataclass(frozen=True)
class SessionCaller:
    """A person by the session of the admin, read anew each time: a sign-out counts at once."""

    session_key: str | None

    def person(self) -> User:
        engine = import_module(settings.SESSION_ENGINE)
        holder = SimpleNamespace(session=engine.SessionStore(self.session_key))
        user = get_user(cast(Any, holder))
        if (
            not isinstance(user, User) or not user.is_staff
        ):  # the session of the admin, which lets in nobody else
            raise Unauthorized("Sign in first.")
        return user

    def run(self, run_id: str) -> AgentRun:
        return _found(queries.visible(self.person()), run_id)

    def canceller(self, run: AgentRun) -> Actor:
        person = self.person()
        if not person.has_perm("tenancy.cancel_runs", run.tenant):
            raise NotYours(
                f"You may not cancel runs of {run.tenant.name}; ask an administrator of that tenant."
            )
        return Actor(f"user:{person.pk}", "websocket")


type Caller = TokenCaller | SessionCaller


def arrive(caller: Caller, run_id: str) -> AgentRun:
    """The run that `caller` wants to read; each arrival of a token counts as one of its requests."""
    if isinstance(caller, TokenCaller):
        rates.take(caller.principal("runs:read"))
    return caller.run(run_id)


def may_still_read(caller: Caller, run_id: str) -> bool:
    try:
        caller.run(run_id)
    except REFUSALS:
        return False
    return True


def _found(runs: QuerySet[AgentRun], run_id: str) -> AgentRun:
    key = parse("run", run_id)
    run = runs.select_related("tenant").filter(pk=key).first() if key else None
    if run is None:
        raise NotFound("There is no such run. Check the id that POST /v1/runs answered.")
    return run
