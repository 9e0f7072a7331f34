"""Following a run: every event after a position, once and in order, until its last one."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from uuid import UUID

from django.conf import settings

from runs.events import LAST

from .database import in_database
from .frames import PAGE, Frame, page
from .tail import Tail


class Withdrawn(Exception):
    """The follower may not read this run any more."""


async def follow(
    tail: Tail, run_id: UUID, after: int, allowed: Callable[[], bool]
) -> AsyncGenerator[Frame | None]:
    """Frames after `after`; None where nothing was said for a heartbeat. Ends after the last event or when we close.

    Rows come first, in pages; then the tail's frames; the rows again if the follower has left too much unread.
    `allowed` is asked in the database once in a while; raises Withdrawn where it says no.
    """
    loop = asyncio.get_running_loop()
    silent_since = checked_at = loop.time()
    reader = tail.enter(after)
    try:
        while not tail.closing:
            if reader.live:
                next_at = min(
                    silent_since + settings.AGENTOPS_STREAM_HEARTBEAT_SECONDS,
                    checked_at + settings.AGENTOPS_STREAM_RECHECK_SECONDS,
                )
                frames = await reader.take(max(0.0, next_at - loop.time()))
            else:
                frames = await in_database(page, run_id, reader.seq)
            short = len(frames) < PAGE
            for frame in frames:
                if frame.seq > reader.seq:  # a live reader may be ahead of the tail
                    reader.seq = frame.seq
                    silent_since = loop.time()
                    yield frame
                    if frame.type in LAST:
                        return
            if not reader.live and short:
                tail.join(run_id, reader)
            if loop.time() >= checked_at + settings.AGENTOPS_STREAM_RECHECK_SECONDS:
                checked_at = loop.time()
                if not await in_database(allowed):
                    raise Withdrawn
            if loop.time() >= silent_since + settings.AGENTOPS_STREAM_HEARTBEAT_SECONDS:
                silent_since = loop.time()
                yield None
    finally:
        tail.leave(run_id, reader)
