"""Database work of streams: a few threads of our own, and no connection held between two reads."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from django.db import connection

# The pool of the web process has 12; a thousand readers that come back at once must leave some to the admin.
CONNECTIONS = 4

_threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="streams")


async def in_database[T, **P](work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, done in a thread that gives its connection back before it returns.

    Not `sync_to_async`: under ASGI that is a thread per request, whose connection stays until the stream ends.
    """

    def work_and_close() -> T:
        try:
            return work(*args, **kwargs)
        finally:
            connection.close()

    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: context.run(work_and_close))
