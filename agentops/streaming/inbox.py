"""How many approvals wait in each tenant that somebody watches: one batched count for all of them."""

import asyncio
from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Final

from django.db.models import Count, Max

from agentops.telemetry.logs import logger
from approvals.models import Approval
from approvals.states import ApprovalStatus
from runs.hints import Hints
from runs.wakeups import inbox_group

from .database import in_database
from .rounds import Rounds

log = logger(__name__)

POLL_SECONDS: Final = 5.0

# How many wait, and since when the newest does: one closed and one new in the same round is a change too.
type Waiting = tuple[int, datetime | None]
NOTHING: Final[Waiting] = (0, None)


class Watcher:
    """One open inbox page, told when a tenant it watches has changed."""

    def __init__(self, tenant_ids: Collection[int]) -> None:
        self.tenant_ids = frozenset(tenant_ids)
        self.changed = asyncio.Event()


class Inbox:
    def __init__(self, hints: Hints) -> None:
        self.closing = False
        self.waiting: dict[int, Waiting] = {}
        self._hints = hints
        self._watchers: dict[int, set[Watcher]] = {}
        self._rounds = Rounds[int](POLL_SECONDS)

    def enter(self, tenant_ids: Collection[int]) -> Watcher:
        watcher = Watcher(tenant_ids)
        for tenant_id in watcher.tenant_ids:
            if tenant_id not in self._watchers:
                self._watchers[tenant_id] = set()
                self._hints.watch(inbox_group(tenant_id), partial(self._rounds.hint, tenant_id))
            elif tenant_id in self.waiting:
                watcher.changed.set()
            self._watchers[tenant_id].add(watcher)
            self._rounds.hint(tenant_id)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        for tenant_id in watcher.tenant_ids:
            self._watchers[tenant_id].discard(watcher)
            if not self._watchers[tenant_id]:
                del self._watchers[tenant_id]
                self.waiting.pop(tenant_id, None)
                self._hints.unwatch(inbox_group(tenant_id))

    def close(self) -> None:
        self.closing = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.changed.set()

    async def run(self) -> None:
        while True:
            due = await self._rounds.next(self._watchers) & self._watchers.keys()
            if not due:
                continue
            try:
                found = await in_database(count_waiting, due)
            except Exception as error:
                log.warning("inbox_unread", error=type(error).__name__)
                await asyncio.sleep(POLL_SECONDS)
                continue
            for tenant_id in due & self._watchers.keys():
                now = found.get(tenant_id, NOTHING)
                if self.waiting.get(tenant_id) != now:
                    self.waiting[tenant_id] = now
                    for watcher in self._watchers[tenant_id]:
                        watcher.changed.set()


def count_waiting(tenant_ids: Collection[int]) -> dict[int, Waiting]:
    rows = (
        Approval.objects.filter(tenant_id__in=tenant_ids, status=ApprovalStatus.REQUESTED)
        .order_by()
        .values("tenant_id")
        .annotate(count=Count("id"), newest=Max("requested_at"))
    )
    return {row["tenant_id"]: (row["count"], row["newest"]) for row in rows}
