"""One HTTP request on the wire: what surely never left is told apart from what may have arrived."""

import functools
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httpcore
import httpx

CONNECT_SECONDS = 2.0
MAX_NESTING = (
    32  # of JSON in JSON: no provider's effect is so deep, and each further level costs whoever reads it one
)
MAX_ANSWER_BYTES = 4 * 1024 * 1024
# An idle connection is dropped before servers drop theirs: a request on a closed one would look lost.
LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=5.0)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_due = threading.local()  # `at`: when the exchange of this thread is given up, on the monotonic clock
FIRST_BYTE = "http11.send_request_headers.started"  # httpcore's trace: connected, and nothing written yet


class NotSent(Exception):
    """No connection could be had: not one byte of the request left."""


class Lost(Exception):
    """The request left, and no whole answer came back in time."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The answer's JSON object; empty where it is anything else."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) and not is_deeper(content, MAX_NESTING) else {}

    @property
    def is_replayed(self) -> bool:
        """The provider had this answer stored under our key."""
        return bool(self.headers.get("idempotent-replayed") == "true")

    @property
    def retry_after_seconds(self) -> float | None:
        with suppress(ValueError):
            return max(0.0, float(self.headers.get("retry-after", "")))
        return None


def is_deeper(value: Any, levels: int) -> bool:
    """Whether JSON is nested more than so deep."""
    match value:
        case dict():
            inner = list(value.values())
        case list():
            inner = value
        case _:
            return False
    return levels == 0 or any(is_deeper(each, levels - 1) for each in inner)


def exchange(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    body: bytes | None = None,
    params: Mapping[str, str] | None = None,
    before_first_byte: Callable[[], None] = lambda: None,
) -> Reply:
    """Send one request, never twice, and return whatever is answered. Raises NotSent or Lost.

    `before_first_byte` is called on the open connection, last before anything is written; what it raises comes out.
    """
    _due.at = time.monotonic() + timeout_seconds
    connect_seconds = min(CONNECT_SECONDS, timeout_seconds / 4)
    departed = False

    def trace(event: str, _: Mapping[str, Any]) -> None:
        nonlocal departed
        if event == FIRST_BYTE:
            before_first_byte()
            departed = True

    parts = urlsplit(url)
    try:
        with _client(parts.scheme, parts.netloc).stream(
            method,
            url,
            content=body,
            params=params,
            headers=dict(headers),
            extensions={"trace": trace, "timeout": {"pool": connect_seconds, "connect": connect_seconds}},
        ) as response:
            return Reply(response.status_code, response.headers, _body(response))
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        # What cannot be written into a header may be a credential: it stands in no message.
        told = "" if isinstance(error, UnicodeError) else f": {error}"
        raise (Lost if departed else NotSent)(f"{type(error).__name__}{told}") from error


def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise Lost(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


@functools.lru_cache(maxsize=64)
def _client(scheme: str, netloc: str) -> httpx.Client:
    """One pool of connections for each origin: safe across threads, and none starves another."""
    # What is on this machine is never asked for through the proxy of the environment.
    host = urlsplit(f"{scheme}://{netloc}").hostname
    client = httpx.Client(limits=LIMITS, follow_redirects=False, trust_env=host not in LOOPBACK)
    for transport in (client._transport, *client._mounts.values()):  # the second: through a proxy
        # httpx gives no public way that keeps proxies; the tests that drip hold this one.
        if transport is not None:
            cast(Any, transport)._pool._network_backend = _Backend()
    return client


class _Stream(httpcore.NetworkStream):
    """A connection on which no part of an exchange, however small each is, is waited for beyond its time-out."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def connect_tcp(self, *args: Any, **more: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **more))


def _left(late: type[Exception]) -> float:
    """Seconds until the exchange of this thread is given up. Raises `late` where it is time."""
    left: float = _due.at - time.monotonic()
    if left <= 0:
        raise late("The answer did not end in time.")
    return left
