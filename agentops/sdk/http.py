"""HTTP for a tool to read with: what a call waits for is aborted when the call is told to stop."""

import functools
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from agentops.sdk.context import Signal
from agentops.sdk.errors import Terminal

_READS = ("GET", "HEAD")
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")  # httpcore's trace


@contextmanager
def client(signal: Signal, **options: Any) -> Iterator[httpx.Client]:
    """A client of this call's own, with httpx's options: `with client(ctx.signal, timeout=10) as http: http.get(…)`.

    Once the run is cancelled or the call's time is up, a request under way ends with an `httpx.TransportError`. It only
    reads (GET, HEAD): anything else raises Terminal, for changes are proposed with `ctx.operation`.
    """
    streams: list[Any] = []

    def trace(event: str, info: dict[str, Any]) -> None:
        if event in _CONNECTED:
            streams.append(info["return_value"])

    def follow(request: httpx.Request) -> None:
        if request.method not in _READS:
            raise Terminal(
                f"A tool only reads by HTTP; propose what this {request.method} does with ctx.operation.",
                code="write_refused",
            )
        request.extensions["trace"] = trace

    def abort() -> None:
        for stream in streams:
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    options.setdefault("verify", _trusted())
    with (
        httpx.Client(event_hooks={"request": [follow]}, **options) as made,
        signal.aborting(abort),
    ):
        yield made


@functools.cache
def _trusted() -> ssl.SSLContext:
    """One for the process: to load the certificates costs more than a request."""
    return httpx.create_ssl_context()
