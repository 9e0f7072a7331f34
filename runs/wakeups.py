"""Hints after a commit: ring the workers' doorbells, tell readers that a run has news. All may be lost, doubled or late.

One background thread sends them, so that no request and no checkpoint ever waits for the broker.
"""

import asyncio
import functools
import threading
from collections import deque
from uuid import UUID

from celery import Celery
from channels.layers import get_channel_layer
from django.db import transaction

from agentops.telemetry.logs import logger

log = logger(__name__)

# The only upward links: two names.
DOORBELL = "agentops.engine.tasks.advance"  # a run of that pool is due
OPERATIONS_DOORBELL = (
    "agentops.engine.tasks.dispatch_due"  # an operation is due that no run's driver is bringing along
)
BELL_EXPIRES_SECONDS = 30
BELL_GAP_SECONDS = 0.05
SEND_TIMEOUT_SECONDS = 5


def run_group(run_id: UUID) -> str:
    """The channel group of a run's readers."""
    return f"run.{run_id.hex}"


def inbox_group(tenant_id: int) -> str:
    """The channel group of everyone who watches a tenant's approvals."""
    return f"approvals.{tenant_id}"


CONTROL_GROUP = "control"  # every driver listens: a run was cancelled, ended or paused; look at yours now


class _Ringer:
    """Coalesces hints: at most one bell of a kind and pool, and one message per group, is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self._bells: set[tuple[str, ...]] = set()  # a task's name with its arguments
        self._groups: deque[str] = deque()
        self._queued: set[str] = set()
        self._thread: threading.Thread | None = None

    def bell(self, *bell: str) -> None:
        with self._lock:
            self._bells.add(bell)
        self._wake()

    def news(self, group: str) -> None:
        with self._lock:
            if group not in self._queued:
                self._queued.add(group)
                self._groups.append(group)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
                self._thread.start()
        self._filled.set()

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        while True:
            self._filled.wait()
            self._filled.clear()
            with self._lock:
                bells, groups = self._bells, list(self._groups)
                self._bells = set()
                self._groups.clear()
                self._queued.clear()
            loop.run_until_complete(_tell(groups))
            for bell in bells:
                _ring(*bell)
            if bells:
                threading.Event().wait(BELL_GAP_SECONDS)


async def _tell(groups: list[str]) -> None:
    layer = get_channel_layer()
    for group in groups:
        try:
            await asyncio.wait_for(
                layer.group_send(group, {"type": "news", "group": group}), SEND_TIMEOUT_SECONDS
            )
        except Exception as error:  # a lost hint costs a poll interval, never an event
            log.info("hint_lost", group=group, error=type(error).__name__)
            return


@functools.cache
def _celery() -> Celery:
    app = Celery("doorbell", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace="CELERY")
    return app


def _ring(task: str, *args: str) -> None:
    try:
        _celery().send_task(task, args=args, retry=False, expires=BELL_EXPIRES_SECONDS)
    except Exception as error:  # the drivers look once a second anyway
        log.info("bell_lost", bell=task.rpartition(".")[2], args=args, error=type(error).__name__)


_ringer = _Ringer()


def ring(pool: str) -> None:
    """Ring the doorbell of `pool` once the present transaction has committed."""
    transaction.on_commit(lambda: _ringer.bell(DOORBELL, pool))


def ring_operations() -> None:
    """Ring for operations once the present transaction has committed: one is due now that its run's driver does not hold."""
    transaction.on_commit(lambda: _ringer.bell(OPERATIONS_DOORBELL))


def changed(run_id: UUID) -> None:
    """Tell a run's readers, once the present transaction has committed, that there are new events."""
    transaction.on_commit(lambda: _ringer.news(run_group(run_id)))


def changed_now(run_id: UUID) -> None:
    """The same from outside Django's transactions: the driver calls it after its own commit."""
    _ringer.news(run_group(run_id))


def control_changed() -> None:
    """Tell every driver, once the present transaction has committed, to look which of its runs are still its own."""
    transaction.on_commit(lambda: _ringer.news(CONTROL_GROUP))


def approvals_changed(tenant_id: int) -> None:
    transaction.on_commit(lambda: _ringer.news(inbox_group(tenant_id)))
