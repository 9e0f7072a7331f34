"""What one process keeps for its open streams; started and stopped with the process."""

import asyncio
from typing import Any

from runs.hints import Hints

from .inbox import Inbox
from .tail import Tail


class Live:
    def __init__(self) -> None:
        self.hints = Hints()
        self.tail = Tail(self.hints)
        self.inbox = Inbox(self.hints)
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(part.run()) for part in (self.hints, self.tail, self.inbox)]

    def close(self) -> None:
        """End every stream now; may be called from a signal handler."""
        self._loop.call_soon_threadsafe(self.tail.close)
        self._loop.call_soon_threadsafe(self.inbox.close)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=1)
