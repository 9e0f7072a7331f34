"""In which order transactions really lock the rows of tables: recorded while tests run, and never in a circle."""

import itertools
import re
import threading
from collections.abc import Iterator

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

# The one order that is written down; every other table finds its place by what is seen.
ORDER = (
    "runs_slot",
    "runs_conversation",
    "runs_agentrun",
    "runs_step",
    "operations_target",
    "operations_operation",
    "operations_hook",
    "approvals_approval",
    "operations_incident",
    "operations_settlement",
    "approvals_reviewlimit",
)
_LOCKS = re.compile(r'UPDATE (?:ONLY )?"?(\w+)"?.* SET | FROM "(\w+)".* FOR NO KEY UPDATE', re.S)


class LockOrders:
    """Which table was seen to be locked before which, and by which transaction."""

    def __init__(self) -> None:
        self.orders: set[tuple[str, ...]] = set()
        self.faults: list[str] = []
        self._after: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self.note(ORDER)
        self.orders.clear()

    def note(self, order: tuple[str, ...]) -> None:
        """One transaction's tables, each once, in the order of their first lock."""
        with self._lock:
            if len(order) < 2 or order in self.orders:
                return
            self.orders.add(order)
            for earlier, later in itertools.pairwise(order):
                if self._leads(later, earlier):
                    self.faults.append(
                        f"{later} is locked before {earlier} elsewhere; here: {' → '.join(order)}"
                    )
                else:
                    self._after.setdefault(earlier, set()).add(later)

    def _leads(self, start: str, end: str) -> bool:
        ways, seen = [start], set()
        while ways:
            table = ways.pop()
            if table == end:
                return True
            if table not in seen:
                seen.add(table)
                ways += self._after.get(table, ())
        return False


_orders = LockOrders()
_held = threading.local()


@pytest.fixture(scope="session")
def _recording() -> Iterator[None]:
    """Every statement of Django's connections of this process passes by, whatever thread it is in."""
    execute, commit, rollback = (
        CursorWrapper.execute,
        BaseDatabaseWrapper._commit,
        BaseDatabaseWrapper._rollback,
    )

    def executed(self, sql, params=None):
        result = execute(self, sql, params)
        if not self.db.in_atomic_block:
            _held.tables = []  # what a lost connection left behind
        elif match := _LOCKS.search(str(sql)):
            table = match.group(1) or match.group(2)
            if table not in _held.__dict__.setdefault("tables", []):
                _held.tables.append(table)
        return result

    def ending(end):
        def ended(self):
            tables = tuple(_held.__dict__.pop("tables", ()))
            if not any(getattr(block, "_from_testcase", False) for block in self.atomic_blocks):
                _orders.note(tables)  # else many services share the one transaction of their test
            return end(self)

        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CursorWrapper, "execute", executed)
        patch.setattr(BaseDatabaseWrapper, "_commit", ending(commit))
        patch.setattr(BaseDatabaseWrapper, "_rollback", ending(rollback))
        yield


@pytest.fixture
def lock_orders(_recording: None) -> LockOrders:
    """What was seen so far in this session."""
    return _orders


@pytest.fixture
def no_circle(lock_orders: LockOrders) -> Iterator[None]:
    """A test that uses this one fails where a transaction of the services that it calls closes a circle."""
    yield
    faults, lock_orders.faults = lock_orders.faults, []
    assert faults == [], faults
