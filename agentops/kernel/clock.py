"""The one clock: PostgreSQL's `agentops_now()`. Never the start of a transaction, never a worker's own clock."""

import time
from datetime import datetime
from typing import cast
from zoneinfo import ZoneInfo

from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.models import DateTimeField, Func

PLAIN_SOURCE = "SELECT clock_timestamp()"


class Now(Func):
    """`agentops_now()` in a query; read after the row that it decides about is locked."""

    function = "agentops_now"
    template = "%(function)s()"
    arity = 0
    output_field = DateTimeField()


class Once(Now):
    """`(SELECT agentops_now())`: read once for the whole statement, so that an index can be searched by it."""

    template = "(SELECT %(function)s())"


def now() -> datetime:
    """The database's present time, in UTC."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentops_now()")
        return cast(datetime, cursor.fetchone()[0])


def day_start(at: datetime, timezone: str) -> datetime:
    """The first moment of the day of `at` in that zone, also where an hour of it comes twice. Raises ValueError: no such zone."""
    try:
        there = at.astimezone(ZoneInfo(timezone))
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {timezone}") from error
    return there.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """Seconds on this machine's clock that nobody can set back and that goes on while the machine sleeps."""
    return time.clock_gettime(_SINCE_BOOT)


def refuse_moved_clock() -> None:
    """Raises ImproperlyConfigured where the clock was replaced by one that can be moved, outside a test database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc, current_database() FROM pg_proc WHERE proname = 'agentops_now'")
        row = cursor.fetchone()
    if row is not None and row[0].strip() != PLAIN_SOURCE and not row[1].startswith("test_"):
        raise ImproperlyConfigured(
            f"The clock of database {row[1]} can be moved, which only a test database may. Migrate a fresh one."
        )
