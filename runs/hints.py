"""Hints from other processes, by Channels groups: they may be lost, doubled or late, and break nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from channels.layers import get_channel_layer

from agentops.telemetry.logs import logger

log = logger(__name__)
# Its receiver writes a traceback a second while the broker is away; one line of ours each time we ask again is enough.
logging.getLogger("channels_redis.pubsub").setLevel(logging.CRITICAL)

BROKER_SECONDS = 5.0
BACKOFF_SECONDS = (0.5, 15.0)


class Hints:
    """Follows the groups that somebody watches. With the broker away it retries, and polling goes on without it."""

    def __init__(self) -> None:
        self._watched: dict[str, Callable[[], None]] = {}
        self._joined: set[str] = set()
        self._changed = asyncio.Event()

    def watch(self, group: str, news: Callable[[], None]) -> None:
        """Call `news` at each hint of `group`, and once when the group is joined: hints before that are lost."""
        self._watched[group] = news
        self._changed.set()

    def unwatch(self, group: str) -> None:
        self._watched.pop(group, None)
        self._changed.set()

    async def run(self) -> None:
        layer = get_channel_layer()
        channel = await _at_last(layer.new_channel)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(channel))
            tasks.create_task(self._follow_watched(channel))

    async def _listen(self, channel: str) -> None:
        layer = get_channel_layer()
        while True:
            message = await layer.receive(channel)
            news = self._watched.get(message.get("group", ""))
            if news is not None:
                news()

    async def _follow_watched(self, channel: str) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await _at_last(lambda: self._join_and_leave(channel))

    async def _join_and_leave(self, channel: str) -> None:
        layer = get_channel_layer()
        for group in self._watched.keys() - self._joined:
            await layer.group_add(group, channel)
            self._joined.add(group)
            news = self._watched.get(group)
            if news is not None:
                news()
        for group in self._joined - self._watched.keys():
            await layer.group_discard(group, channel)
            self._joined.discard(group)


async def _at_last[T](attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of the first attempt that the broker answers."""
    pause_seconds, longest_seconds = BACKOFF_SECONDS
    while True:
        try:
            async with asyncio.timeout(BROKER_SECONDS):
                return await attempt()
        except Exception as error:
            log.info("hints_unavailable", error=type(error).__name__, again_in_seconds=pause_seconds)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(pause_seconds * 2, longest_seconds)
