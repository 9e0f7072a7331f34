"""Reading runs: what was asked, what came of it, who may see it, what its log says after a place."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from guardian.shortcuts import get_objects_for_user

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


def events_after(run_id: UUID, seq: int, limit: int) -> list[RunEvent]:
    """At most `limit` events after `seq`, in order."""
    return list(RunEvent.objects.filter(run_id=run_id, seq__gt=seq).order_by("seq")[:limit])
