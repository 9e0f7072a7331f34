"""The door of the web process: lifespan is ours, sockets go to Channels, everything else to Django."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django = get_asgi_application()

# After Django is set up: these import models.
from agentops.api.body import capped  # noqa: E402
from agentops.streaming import sockets  # noqa: E402
from agentops.streaming.live import Live  # noqa: E402

pages = capped(django)

type Receive = Callable[[], Awaitable[Any]]
type Send = Callable[[Any], Awaitable[None]]


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    match scope["type"]:
        case "lifespan":
            await lifespan(scope, receive, send)
        case "websocket":
            await sockets.application(scope, receive, send)
        case _:
            await pages(scope, receive, send)


async def lifespan(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Django answers none. What is put into the state here stands in the scope of every request and socket."""
    await receive()
    live = scope["state"]["live"] = Live()
    live.start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await live.stop()
    await send({"type": "lifespan.shutdown.complete"})
