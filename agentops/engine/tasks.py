"""Celery rings: the doorbells that wake this process's driver, and what beat asks for from time to time."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.db import connection
from django.db.models import Q

from agentops.kernel.clock import Once
from agentops.telemetry.logs import logger
from approvals import notices
from approvals.queries import waiting_long
from approvals.services import AUTHORITY, expire_due
from operations.sweep import sweep_due
from runs import leases
from runs.models import BusyCall
from runs.queries import answered_and_unclaimed, cancelled_and_alive
from runs.wakeups import ring

from . import driver, loading
from .control import end_overdue

log = logger(__name__)

UNCLAIMED_SECONDS = 10
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


@shared_task(ignore_result=True)
def sweep() -> int:
    """Ring for runs that have been ready for a while and that nobody has claimed, and say so: an alarm, not the path.

    Of a run that somebody holds back, or that waits for another release, the lists tell; it is no alarm.
    """
    has = loading.has()
    with connection.cursor() as cursor:
        cursor.execute(leases.UNCLAIMED, {"seconds": UNCLAIMED_SECONDS, "has": has})
        pools = [pool for (pool,) in cursor.fetchall()]
    for pool in pools:
        log.warning("runs_nobody_claims", pool=pool)
        ring(pool)
    # What needs nothing, named apart: of such the planner knows how many there are.
    here = Q(needs=[]) | Q(needs__contained_by=has)
    for run in answered_and_unclaimed().filter(here, paused_at=None, tenant__state="active")[:ALARMS]:
        log.error("run_answered_and_unclaimed", run_id=run.public_id)
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
