"""The door of the web process: lifespan is ours, sockets go to Channels, everything else to Django."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django.setup(set_prefix=False)

# After Django is set up: these import models.
from agentops.api.body import capped  # noqa: E402
from agentops.streaming import sockets  # noqa: E402
from agentops.streaming.live import Live  # noqa: E402

type Scope = dict[str, Any]
type Receive = Callable[[], Awaitable[Any]]
type Send = Callable[[Any], Awaitable[None]]


class Pages(ASGIHandler):
    """Django. It keeps a thread for a request until its last byte: too long for one that is an event stream."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if is_stream(scope["path"]):
            await self.handle(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        if not is_stream(request.path):
            return await super().run_get_response(request)
        async with (
            ThreadSensitiveContext()
        ):  # the thread goes when the response begins, and with it its connection
            response = await super().run_get_response(request)
            await sync_to_async(close_old_connections)()
        return response


def is_stream(path: str) -> bool:
    return path.startswith("/v1/") and path.endswith("/events")


pages = capped(Pages())


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    match scope["type"]:
        case "lifespan":
            await lifespan(scope, receive, send)
        case "websocket":
            await sockets.application(scope, receive, send)
        case _:
            await pages(scope, receive, send)


async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    """Django answers none. What is put into the state here stands in the scope of every request and socket."""
    await receive()
    live = scope["state"]["live"] = Live()
    live.start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await live.stop()
    await send({"type": "lifespan.shutdown.complete"})
