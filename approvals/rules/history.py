"""What has happened already: counts and sums over operations of the same action, across runs, in-flight ones with them.

An operation is counted while it is open, and for a window's length after it has succeeded, unless it was undone. Each one
counts only those that were recorded before it. So the first of two always stands, and what was counted for an operation
can only become less while it waits: a later look never asks for more than the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum

from agentops.kernel.clock import now
from operations.models import Operation
from operations.states import FINAL, OperationStatus

from .conditions import CannotEvaluate
from .variables import MEASURES

_SPANS: Mapping[str, timedelta] = {
    "last_hour": timedelta(hours=1),
    "last_24h": timedelta(hours=24),
    "last_7d": timedelta(days=7),
    "last_30d": timedelta(days=30),
}


@dataclass(frozen=True)
class Subject:
    """Whose history it is: the proposal's own place among all operations. `before` where it is recorded itself."""

    tenant_id: int
    timezone: str
    action: str
    target: str
    actor: str
    agent: str
    currency: str
    before: Operation | None = None


def take_place(operation: Operation) -> None:
    """Give a freshly recorded operation its place among all of its tenant and action: after every one that is committed.

    Until this transaction ends nobody else of these is given one, so none is counted by two or by none. The lock comes last
    of all, with the counters: whoever waits for it holds nothing that its holder still wants.
    """
    with connection.cursor() as cursor:
        name = f"policy history {operation.tenant_id} {operation.action}"
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
    operation.created_at = now()
    Operation.objects.filter(pk=operation.pk).update(created_at=operation.created_at)


def count(
    subject: Subject, windows: Iterable[tuple[str, str]], *, at: datetime | None = None
) -> dict[str, int]:
    """`history.<scope>.<window>.<measure>` for each of these scopes and windows. Raises CannotEvaluate."""
    wanted = sorted(windows)
    if not wanted:
        return {}
    moment = at or now()
    starts = {window: _start(window, moment, subject.timezone) for _, window in wanted}
    scopes = {scope: _of_scope(subject, scope) for scope, _ in wanted}
    is_open, done = ~Q(status__in=FINAL), Q(status=OperationStatus.SUCCEEDED, reversed_at=None)
    rows = Operation.objects.filter(
        is_open | (done & Q(updated_at__gt=min(starts.values()))),
        tenant_id=subject.tenant_id,
        action=subject.action,
    )
    if "tenant" not in scopes:
        rows = rows.filter(Q(*scopes.values(), _connector=Q.OR))
    measures: dict[str, Count | Sum] = {}
    for place, (scope, window) in enumerate(wanted):
        counted = scopes[scope] & (is_open | (done & Q(updated_at__gt=starts[window])))
        measures[f"count_{place}"] = Count("pk", filter=counted)
        in_currency = counted & Q(currency=subject.currency)
        measures[f"sum_minor_{place}"] = Sum("amount_minor", filter=in_currency, default=0)
    found = _earlier(rows, subject.before).aggregate(**measures)
    return {
        f"history.{scope}.{window}.{measure}": int(found[f"{measure}_{place}"])
        for place, (scope, window) in enumerate(wanted)
        for measure in MEASURES
    }


def _start(window: str, moment: datetime, timezone: str) -> datetime:
    if window in _SPANS:
        return moment - _SPANS[window]
    try:
        there = moment.astimezone(ZoneInfo(timezone))
    except (KeyError, ValueError, OSError) as error:
        raise CannotEvaluate(f"no time zone {timezone}") from error
    return there.replace(hour=0, minute=0, second=0, microsecond=0)


def _of_scope(subject: Subject, scope: str) -> Q:
    kind, _, name = subject.target.partition(":")
    return {
        "target": Q(target_type=kind, target_name=name),
        "customer": Q(actor=subject.actor),
        "agent": Q(run__agent=subject.agent),
        "tenant": Q(),
    }[scope]


def _earlier(rows: "QuerySet[Operation]", before: Operation | None) -> "QuerySet[Operation]":
    if before is None:
        return rows
    first = Q(created_at__lt=before.created_at) | Q(created_at=before.created_at, pk__lt=before.pk)
    return rows.filter(first)


def same_target(subject: Subject) -> tuple[Operation, ...]:
    """The softer guard: other live operations of that action on that target, or recent ones that succeeded."""
    others = Operation.objects.filter(
        _of_scope(subject, "target"), tenant_id=subject.tenant_id, action=subject.action
    )
    others = _earlier(others, subject.before)
    since = now() - timedelta(days=settings.AGENTOPS_SAME_TARGET_DAYS)
    live = others.exclude(status__in=FINAL)
    done = others.filter(
        status=OperationStatus.SUCCEEDED, updated_at__gt=since
    )  # its last move was to succeed
    return tuple(live.order_by("created_at")[:5]) + tuple(done.order_by("created_at")[:5])
