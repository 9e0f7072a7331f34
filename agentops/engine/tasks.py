"""Celery rings: the doorbells that wake this process's driver, and what beat asks for from time to time."""

from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.db import connection

from agentops.kernel.clock import Once
from agentops.kernel.ids import show
from agentops.telemetry.logs import logger
from approvals import notices
from approvals.queries import waiting_long
from approvals.services import AUTHORITY, expire_due
from operations.sweep import sweep_due
from runs import leases
from runs.models import BusyCall
from runs.queries import cancelled_and_alive
from runs.wakeups import ring

from . import driver, loading
from .control import end_overdue

log = logger(__name__)

UNCLAIMED_SECONDS, UNHEARD_SECONDS = 10, 60
ALARMS = 20  # of one kind in one sweep
FORGOTTEN = timedelta(minutes=10)


@shared_task(ignore_result=True)
def advance(pool: str) -> int:
    """Wake the driver of this process and return the size of the claim that follows; PostgreSQL alone knows what is ready."""
    present = driver.current()
    if present is None or present.pool_name != pool:
        return 0
    return present.claim_now()


@shared_task(ignore_result=True)
def dispatch_due() -> int:
    """Let the driver of this process claim the operations that are due, and return how many it has begun with."""
    present = driver.current()
    return 0 if present is None else present.look_now()


def _unclaimed(seconds: int) -> list[tuple[str, UUID]]:
    """Pool and run: the first of each tenant that has been ready for so long, the longest first."""
    with connection.cursor() as cursor:
        cursor.execute(leases.UNCLAIMED, {"seconds": seconds, "has": loading.has()})
        return [(pool, run_id) for pool, run_id in cursor.fetchall()]


@shared_task(ignore_result=True)
def sweep() -> int:
    """Ring for runs that have been ready for a while and that nobody has claimed, and say so: an alarm, not the path.

    Of a run that somebody holds back, that waits for another release or for its tenant's turn, the lists tell: it is no alarm.
    """
    for pool in dict.fromkeys(pool for pool, _ in _unclaimed(UNCLAIMED_SECONDS)):
        log.warning("runs_nobody_claims", pool=pool)
        ring(pool)
    for pool, run_id in _unclaimed(UNHEARD_SECONDS)[:ALARMS]:
        log.error("run_answered_and_unclaimed", pool=pool, run_id=show("run", run_id))
    for run in cancelled_and_alive()[:ALARMS]:
        log.error("cancel_not_effective", run_id=run.public_id, open_effects=run.open_effects)
    BusyCall.objects.filter(seen_at__lt=Once() - FORGOTTEN).delete()  # of processes that are gone
    return end_overdue()


@shared_task(ignore_result=True)
def expire_approvals() -> int:
    """Close approvals that nobody decided in time."""
    return expire_due()


@shared_task(ignore_result=True)
def tell_reviewers() -> int:
    """Write to people about what waits for them; beside it, say what has waited longest: nobody may ever look at it."""
    for approval in waiting_long(settings.AGENTOPS_APPROVAL_HOURS):
        log.warning(
            "approval_waits_long", approval=approval.public_id, since=approval.requested_at.isoformat()
        )
    notices.make_due()
    return notices.send_due()


@shared_task(ignore_result=True)
def sweep_effects() -> int:
    """Compare what providers list with our operations: once a day each, some pages at a time, none twice."""
    return sweep_due(AUTHORITY)


@shared_task(ignore_result=True)
def open_partitions() -> int:
    """Keep the partitions of this and the next two months open."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentops_open_partitions(2)")
        return int(cursor.fetchone()[0])
