"""Tool threads: one thread a call, a bounded number at once; a call that overruns its limit is left behind."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import connection


class ToolThreads:
    """Runs synchronous code for the event loop. An abandoned thread frees its place; its late result is dropped."""

    def __init__(self, size: int) -> None:
        self._room = asyncio.Semaphore(size)
        self._abandoned: dict[threading.Thread, tuple[UUID, str] | None] = {}

    def abandoned(self) -> int:
        """How many threads are still at work that nobody waits for any more."""
        self._abandoned = {thread: call for thread, call in self._abandoned.items() if thread.is_alive()}
        return len(self._abandoned)

    def left_behind(self) -> list[tuple[UUID, str]]:
        """The calls, as run and key, that such threads are in."""
        return [call for thread, call in self._abandoned.items() if call is not None and thread.is_alive()]

    async def run[T](
        self,
        work: Callable[[], T],
        *,
        limit_seconds: float | None = None,
        name: str = "tool",
        call: tuple[UUID, str] | None = None,
    ) -> T:
        """`work()` in a thread of its own, with the caller's log context; raises TimeoutError past its limit.

        `call` names it where it is to be told of when it is left behind.
        """
        async with self._room:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[Any] = loop.create_future()
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=context.run, args=(_carry, work, loop, done), name=name, daemon=True
            )
            thread.start()
            try:
                async with asyncio.timeout(limit_seconds):
                    result: T = await done
                    return result
            except (TimeoutError, asyncio.CancelledError):
                self._abandoned[thread] = call
                raise


def _carry(work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]") -> None:
    try:
        outcome: Any = work()
        error: BaseException | None = None
    except BaseException as raised:
        outcome, error = None, raised
    finally:
        connection.close()  # a thread that ends must not keep its connection

    def tell() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(outcome)
        else:
            done.set_exception(_carriable(error))

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop has been closed meanwhile: nobody waits for this any more
        return


def _carriable(error: BaseException) -> BaseException:
    # A future refuses StopIteration, and a raised SystemExit would end the loop's thread.
    return (
        error
        if not isinstance(error, StopIteration | SystemExit | KeyboardInterrupt)
        else RuntimeError(repr(error))
    )
