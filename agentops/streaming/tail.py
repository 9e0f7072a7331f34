"""The one reader of new events in a process: a batched query for all runs that somebody follows."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from agentops.telemetry.logs import logger
from runs.hints import Hints
from runs.wakeups import run_group

from .database import in_database
from .frames import PAGE, Frame, read
from .rounds import Rounds

log = logger(__name__)

POLL_SECONDS: Final = 1.0
# What one reader may leave unread before it is put back to the rows: frames, and characters of their text.
UNREAD_FRAMES: Final = 256
UNREAD_CHARACTERS: Final = 1_000_000


class Reader:
    """One follower of a run: `seq` is the last event it has handed on."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.live = False  # the tail brings it what is new; else it reads the rows itself
        self._unread: list[Frame] = []
        self._characters = 0
        self._news = asyncio.Event()

    def offer(self, frames: Sequence[Frame]) -> bool:
        """Hand over `frames`; False where the reader has left too much unread: it has dropped all of it."""
        self._unread.extend(frames)
        self._characters += sum(len(frame.text) for frame in frames)
        kept = len(self._unread) <= UNREAD_FRAMES and self._characters <= UNREAD_CHARACTERS
        if not kept:
            self._drop()
            self.live = False
        self._news.set()
        return kept

    async def take(self, timeout_seconds: float) -> list[Frame]:
        """What came since the last call, else what comes within the time; may be empty."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()
        frames = self._unread
        self._drop()
        return frames

    def wake(self) -> None:
        self._news.set()

    def _drop(self) -> None:
        self._unread, self._characters = [], 0


class _Watch:
    """A run that somebody follows: `seq` is the last event that its readers were offered."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.readers: set[Reader] = set()


class Tail:
    def __init__(self, hints: Hints) -> None:
        self.closing = False
        self._hints = hints
        self._watches: dict[UUID, _Watch] = {}
        self._rounds = Rounds[UUID](POLL_SECONDS)
        self._readers: set[Reader] = set()

    def enter(self, seq: int) -> Reader:
        """A new follower, which reads the rows first; each `enter` has its `leave`."""
        reader = Reader(seq)
        self._readers.add(reader)
        return reader

    def join(self, run_id: UUID, reader: Reader) -> None:
        """Make `reader` live, unless the tail has read further meanwhile: then it reads the rows once more.

        So there is no gap: what the tail offers next follows on what the reader has.
        """
        watch = self._watches.get(run_id)
        if watch is None:
            watch = self._watches[run_id] = _Watch(reader.seq)
            self._hints.watch(run_group(run_id), partial(self._rounds.hint, run_id))
            self._rounds.hint(run_id)
        if watch.seq <= reader.seq:
            watch.readers.add(reader)
            reader.live = True

    def leave(self, run_id: UUID, reader: Reader) -> None:
        self._readers.discard(reader)
        watch = self._watches.get(run_id)
        if watch is None:
            return
        watch.readers.discard(reader)
        if not watch.readers:
            del self._watches[run_id]
            self._hints.unwatch(run_group(run_id))

    def close(self) -> None:
        """Let every follower end now."""
        self.closing = True
        for reader in self._readers:
            reader.wake()

    async def run(self) -> None:
        while True:
            due = await self._rounds.next(self._watches)
            positions = {run_id: self._watches[run_id].seq for run_id in due if run_id in self._watches}
            if not positions:
                continue
            try:
                found = await in_database(read, positions)
            except (
                Exception
            ) as error:  # the database is away: the streams stay open, the next round tries again
                log.warning("tail_unread", error=type(error).__name__, runs=len(positions))
                await asyncio.sleep(POLL_SECONDS)
                continue
            for run_id, frames in found.items():
                self.deliver(run_id, positions[run_id], frames)

    def deliver(self, run_id: UUID, after: int, frames: Sequence[Frame]) -> None:
        """Offer the run's live readers the frames that a look found `after` where the tail stood when it began."""
        watch = self._watches.get(run_id)
        if watch is None:
            return
        if (
            watch.seq != after
        ):  # all readers left and others came while the query ran: these rows may not follow
            self._rounds.hint(run_id)
            return
        watch.seq = frames[-1].seq
        watch.readers = {reader for reader in watch.readers if reader.offer(frames)}
        if len(frames) == PAGE:
            self._rounds.hint(run_id)
