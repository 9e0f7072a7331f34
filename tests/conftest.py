"""What every test has: a database of the owner's, a clock that can be moved, ordinary rows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.test import TransactionTestCase

from agentops.tenancy import vault
from tests.provider import provider, provider_process

__all__ = ["provider", "provider_process"]

KEPT = {
    "django_migrations",
    "django_content_type",
    "auth_permission",
    "kernel_partitioned",
    "kernel_append_only",
    "kernel_test_clock",
}

POOL = {"min_size": 1, "max_size": 40, "timeout": 10}


# In seconds: an interval of days would be shorter or longer where a session's zone changes its clocks.
MOVABLE_CLOCK = (
    "CREATE OR REPLACE FUNCTION agentops_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
    " 'SELECT clock_timestamp() + make_interval(secs =>"
    " COALESCE((SELECT extract(epoch FROM shift) FROM kernel_test_clock), 0)::float8)'"
)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The database's clock gets an offset, which only a test database may have."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS kernel_test_clock (shift interval NOT NULL)")
        cursor.execute("GRANT SELECT ON kernel_test_clock TO agentops_app")
        cursor.execute(MOVABLE_CLOCK)
        cursor.execute("DELETE FROM kernel_test_clock")
    connection.close()
    # As in web and worker, where each look of a thread of its own would begin with a connection.
    connection.settings_dict["OPTIONS"]["pool"] = POOL
    yield
    # A thread that never ended keeps its own connection open.
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _clean(self: TransactionTestCase) -> None:
    """After a test with real commits: append-only tables refuse it, so triggers rest meanwhile.

    A few rows in each table: to delete them takes a thirtieth of the time of a TRUNCATE.
    """
    connections["default"].close()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '10s'")
        cursor.execute(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        names = [name for name in connection.introspection.table_names(cursor) if name not in KEPT]
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("; ".join(f"DELETE FROM {name}" for name in [*names, "kernel_test_clock"]))
    connections["default"].close()


@pytest.fixture(scope="session", autouse=True)
def _cleaning() -> None:
    TransactionTestCase._fixture_teardown = _clean  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _forget_keys() -> Iterator[None]:
    vault.forget()
    yield
    vault.forget()


@pytest.fixture
def away(transactional_db: None) -> Callable[[], AbstractContextManager[None]]:
    """`with away(): ...`: nobody listens where PostgreSQL should be."""
    wanted = connection.settings_dict

    @contextmanager
    def nobody_there() -> Iterator[None]:
        port = wanted["PORT"]
        connection.close()
        connection.close_pool()
        wanted["PORT"], wanted["OPTIONS"]["pool"] = "1", None
        try:
            yield
        finally:
            connection.close()
            wanted["PORT"], wanted["OPTIONS"]["pool"] = port, POOL

    return nobody_there


@pytest.fixture
def move_clock(db: None) -> Callable[[float], None]:
    """`move_clock(3600)`: the database's clock is an hour ahead from now on."""

    def move(seconds: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE kernel_test_clock SET shift = shift + %s", [timedelta(seconds=seconds)])
            if cursor.rowcount == 0:
                cursor.execute("INSERT INTO kernel_test_clock VALUES (%s)", [timedelta(seconds=seconds)])

    return move


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick ones first, so that a fault shows before a browser has started; those that drive one in this thread last.

    While a browser is open its event loop runs in this thread, and nothing else that wants one may.
    """
    order = [
        "unit",
        "architecture",
        "snapshots",
        "integration",
        "cases",
        "conformance",
        "faults",
        "acceptance",
    ]
    places = {name: place for place, name in enumerate(order)}

    def place(item: pytest.Item) -> tuple[int, int]:
        parts = item.path.parts
        kinds = [part for part in parts if part in places]
        browser = 2 if "console" in parts and "acceptance" in parts else "docs_page" in item.path.name
        return places[kinds[0]] if kinds else len(order), int(browser)

    items.sort(key=place)


assert settings.TESTING
