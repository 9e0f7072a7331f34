"""What a worker does beside its runs: ends that nobody was told of, messages that were left, operations that are due."""

import asyncio
import concurrent.futures
from functools import partial
from uuid import UUID

from agentops.telemetry.logs import logger
from approvals.services import AUTHORITY
from operations.hooks import take_left
from operations.reconcile import carry_on, due

from . import aftermath
from .threads import ToolThreads

log = logger(__name__)


class Errands:
    """`look` on the driver's loop, with `threads` set; `asked` from any thread."""

    threads: ToolThreads

    def __init__(self, owner: str) -> None:
        self.under_way: dict[UUID, asyncio.Task[None]] = {}
        self._owner = owner
        self._askers: list[concurrent.futures.Future[int]] = []
        self._told_up_to: UUID | None = None  # where the next look for untold ends goes on

    def asked(self) -> concurrent.futures.Future[int]:
        """How many operations the next look has begun with, when it has looked."""
        asker: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._askers.append(asker)
        return asker

    async def look(self) -> None:
        """Begin with what is due, whoever proposed it."""
        askers, self._askers = self._askers, []
        begun = 0
        try:
            look = partial(_look, self._told_up_to)
            found, self._told_up_to = await self.threads.run(look, name="service")
            for operation_id in found:
                if operation_id not in self.under_way:
                    self.under_way[operation_id] = asyncio.create_task(self._carry_on(operation_id))
                    begun += 1
        finally:
            for asker in askers:
                asker.set_result(begun)

    async def _carry_on(self, operation_id: UUID) -> None:
        try:
            work = partial(carry_on, operation_id, AUTHORITY, worker=self._owner)
            await self.threads.run(work, name="operation")
        except Exception:
            log.exception("operation_failed", operation=str(operation_id))
        finally:
            self.under_way.pop(operation_id, None)


def _look(told_up_to: UUID | None) -> tuple[list[UUID], UUID | None]:
    """The operations that are due, after what others were to be told of, and up to where they were; one look, one connection."""
    told_up_to = aftermath.look(told_up_to)
    take_left()
    return due(), told_up_to
