"""What has happened already: counts and sums over operations of the same action, across runs, in-flight ones with them.

An operation is counted while it is open, and for a window's length after it has succeeded, unless it was undone. Each one
counts only those that were recorded before it. So the first of two always stands, and what was counted for an operation
can only become less while it waits: a later look never asks for more than the first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum

from agentops.kernel.clock import day_start, now
from operations.models import Operation
from operations.states import OPEN, OperationStatus

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
    wanted = defaultdict[str, list[str]](list)
    for scope, window in sorted(windows):
        wanted[scope].append(window)
    moment = (at or now()) if wanted else None
    found: dict[str, int] = {}
    for scope, names in wanted.items():  # a statement each, so that each has an index
        assert moment is not None
        starts = {name: _start(name, moment, subject.timezone) for name in names}
        found |= _of_scope(subject, scope, starts)
    return found


def _of_scope(subject: Subject, scope: str, starts: Mapping[str, datetime]) -> dict[str, int]:
    def counted(since: datetime) -> Q:
        done = Q(status=OperationStatus.SUCCEEDED, updated_at__gt=since)  # its last move was to succeed
        return Q(status__in=sorted(OPEN)) | (done & Q(reversed_at=None))

    measures: dict[str, Count | Sum] = {}
    for window, since in starts.items():
        measures[f"{window}__count"] = Count("pk", filter=counted(since))
        in_currency = counted(since) & Q(currency=subject.currency)
        measures[f"{window}__sum_minor"] = Sum("amount_minor", filter=in_currency, default=0)
    rows = _others(subject, scope).filter(counted(min(starts.values()))).aggregate(**measures)
    return {
        f"history.{scope}.{window}.{measure}": int(rows[f"{window}__{measure}"])
        for window in starts
        for measure in MEASURES
    }


def _start(window: str, moment: datetime, timezone: str) -> datetime:
    if window in _SPANS:
        return moment - _SPANS[window]
    try:
        return day_start(moment, timezone)
    except ValueError as error:
        raise CannotEvaluate(str(error)) from error


def _others(subject: Subject, scope: str) -> "QuerySet[Operation]":
    """All of that scope that have their place before the subject's own."""
    kind, _, name = subject.target.partition(":")
    within = {
        "target": Q(target_type=kind, target_name=name),
        "customer": Q(actor=subject.actor),
        "agent": Q(run__agent=subject.agent),
        "tenant": Q(),
    }[scope]
    rows = Operation.objects.filter(within, tenant_id=subject.tenant_id, action=subject.action)
    own = subject.before
    if own is None:
        return rows
    return rows.filter(Q(created_at__lt=own.created_at) | Q(created_at=own.created_at, pk__lt=own.pk))


def same_target(subject: Subject) -> tuple[Operation, ...]:
    """The softer guard: other live operations of that action on that target, or recent ones that succeeded; a few of them."""
    live, done = _on_target(subject)
    return tuple(live.order_by("created_at")[:5]) + tuple(done.order_by("created_at")[:5])


def count_same_target(subject: Subject) -> int:
    """How many these are, all of them."""
    live, done = _on_target(subject)
    return live.count() + done.count()


def _on_target(subject: Subject) -> tuple["QuerySet[Operation]", "QuerySet[Operation]"]:
    others = _others(subject, "target")
    since = now() - timedelta(days=settings.AGENTOPS_SAME_TARGET_DAYS)
    live = others.filter(status__in=sorted(OPEN))
    return live, others.filter(status=OperationStatus.SUCCEEDED, updated_at__gt=since)
