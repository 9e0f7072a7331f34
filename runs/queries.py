"""Reading runs: what was asked, what came of it, who may see it, what its log says after a place."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from guardian.shortcuts import get_objects_for_user

from agentops.kernel.clock import Once
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant, User
from agentops.tenancy.principals import Principal

from .models import AgentRun, RunEvent
from .services import input_place, result_place


def input_text(run: AgentRun) -> str:
    """What the run was asked."""
    text: str = vault.unseal(input_place(run.id), run.sealed_input)["text"]
    return text


def result(run: AgentRun) -> dict[str, Any] | None:
    """{text, data?} once the run has its answer."""
    if run.sealed_result is None:
        return None
    found: dict[str, Any] = vault.unseal(result_place(run.id), run.sealed_result)
    return found


def visible(user: User) -> QuerySet[AgentRun]:
    """The runs of the tenants in which `user` may see runs, newest first."""
    tenants: QuerySet[Tenant] = get_objects_for_user(
        user, "tenancy.view_runs", klass=Tenant, use_groups=True, accept_global_perms=False
    )
    ids = list(tenants.values_list("id", flat=True))
    return AgentRun.objects.filter(tenant_id__in=ids).select_related("tenant").order_by("-created_at", "-id")


def for_principal(principal: Principal) -> QuerySet[AgentRun]:
    """The runs of the caller's own tenant: another's are not there."""
    return AgentRun.objects.filter(tenant=principal.tenant).order_by("-created_at", "-id")


def answered_and_unclaimed(seconds: float = 60) -> QuerySet[AgentRun]:
    """Runs that have been due for so long and that no worker has claimed: what they waited for is there, or they are new.

    A paused one is among them, since whoever paused it may have forgotten it.
    """
    since = Once() - timedelta(seconds=seconds)
    nobodys = Q(lease_owner__isnull=True) | Q(lease_expires_at__lte=since)
    return AgentRun.objects.filter(nobodys, ready_at__lte=since).select_related("tenant").order_by("ready_at")


def cancelled_and_alive(seconds: float = 60) -> QuerySet[AgentRun]:
    """Runs that were cancelled so long ago and have not come to their end: something that was sent is not settled."""
    since = Once() - timedelta(seconds=seconds)
    alive = AgentRun.objects.filter(ending="cancelled", finished_at=None, cancel_requested_at__lte=since)
    return alive.select_related("tenant").order_by("cancel_requested_at")


def events_after(run_id: UUID, seq: int, limit: int) -> list[RunEvent]:
    """At most `limit` events after `seq`, in order."""
    return list(RunEvent.objects.filter(run_id=run_id, seq__gt=seq).order_by("seq")[:limit])
