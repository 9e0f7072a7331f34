"""What a tenant may have at once, as every door checks it before it answers."""

from agentops.kernel.problems import TooMany
from agentops.tenancy.models import Tenant

from .models import AgentRun
from .states import RunStatus

RETRY_SECONDS = 5


def leave_room(tenant: Tenant) -> None:
    """Raises TooMany where more runs of `tenant` queue or hold a lease than it may have; those that wait do not count.

    Called in the transaction that has just added one, which the raise takes back. Advisory: nobody is locked, so
    requests at the same instant may go slightly above.
    """
    of_tenant = AgentRun.objects.filter(
        tenant=tenant
    )  # two counts, each from an index of its own; none is both
    queued = of_tenant.filter(status=RunStatus.QUEUED).count()
    if queued + of_tenant.filter(lease_owner__isnull=False).count() > tenant.open_runs:
        raise TooMany(
            f"{tenant.open_runs} runs of {tenant} are queued or under way, which is its limit. Repeat the request"
            " later; nothing was started.",
            code="too_many_runs",
            headers={"Retry-After": str(RETRY_SECONDS)},
        )
