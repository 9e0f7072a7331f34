"""When to look again: at once for what a hint named, for everything once an interval."""

import asyncio
from collections.abc import Collection
from contextlib import suppress


class Rounds[Key]:
    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._due: set[Key] = set()
        self._woken = asyncio.Event()
        self._everything_at = 0.0

    def hint(self, key: Key) -> None:
        self._due.add(key)
        self._woken.set()

    async def next(self, everything: Collection[Key]) -> set[Key]:
        """Wait for a hint or for the interval, and say what is due; hints that come meanwhile are one round."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._everything_at):
                await self._woken.wait()
        self._woken.clear()
        due, self._due = self._due, set()
        # Not by the time-out alone: hints without end would put this off for ever.
        if loop.time() >= self._everything_at:
            due.update(everything)
            self._everything_at = loop.time() + self._interval_seconds
        return due
