"""One HTTP request on the wire: what surely never left is told apart from what may have arrived."""

import functools
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

CONNECT_SECONDS = 2.0
LEAST_SECONDS = 0.001
MAX_ANSWER_BYTES = 4 * 1024 * 1024
# An idle connection is dropped before servers drop theirs: a request on a closed one would look lost.
LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=5.0)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
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
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def is_replayed(self) -> bool:
        """The provider had this answer stored under our key."""
        return bool(self.headers.get("idempotent-replayed") == "true")

    @property
    def retry_after_seconds(self) -> float | None:
        with suppress(ValueError):
            return max(0.0, float(self.headers.get("retry-after", "")))
        return None


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
    deadline = time.monotonic() + timeout_seconds
    connect_seconds = min(CONNECT_SECONDS, timeout_seconds / 4)
    timeouts = {"pool": connect_seconds, "connect": connect_seconds}
    departed = False

    def trace(event: str, _: Mapping[str, Any]) -> None:
        nonlocal departed
        # httpcore reads them when each part begins: what connecting has used up is not waited for once more.
        timeouts["write"] = timeouts["read"] = max(deadline - time.monotonic(), LEAST_SECONDS)
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
            extensions={"trace": trace, "timeout": timeouts},
        ) as response:
            return Reply(response.status_code, response.headers, _body(response, deadline))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise (Lost if departed else NotSent)(f"{type(error).__name__}: {error}") from error


def _body(response: httpx.Response, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise Lost(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise Lost("the answer did not end in time")
    return bytes(body)


@functools.lru_cache(maxsize=64)
def _client(scheme: str, netloc: str) -> httpx.Client:
    """One pool of connections for each origin: safe across threads, and none starves another."""
    # What is on this machine is never asked for through the proxy of the environment.
    host = urlsplit(f"{scheme}://{netloc}").hostname
    return httpx.Client(limits=LIMITS, follow_redirects=False, trust_env=host not in LOOPBACK)
