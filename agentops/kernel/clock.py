"""The one clock: PostgreSQL's `agentops_now()`. Never the start of a transaction, never a worker's own clock."""

from datetime import datetime
from typing import cast

from django.db import connection
from django.db.models import DateTimeField, Func

PLAIN_SOURCE = "SELECT clock_timestamp()"


class Now(Func):
    """`agentops_now()` in a query; read after the row that it decides about is locked."""

    function = "agentops_now"
    template = "%(function)s()"
    arity = 0
    output_field = DateTimeField()


def now() -> datetime:
    """The database's present time, in UTC."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentops_now()")
        return cast(datetime, cursor.fetchone()[0])


def has_offset() -> bool:
    """Whether somebody replaced the clock by one that can be moved: allowed in a test database only."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = 'agentops_now'")
        row = cursor.fetchone()
    return row is None or row[0].strip() != PLAIN_SOURCE
