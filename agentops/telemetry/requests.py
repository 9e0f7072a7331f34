"""Request and trace ids: taken from the caller where they are plain, made here where not, bound to every log line."""

import re
import secrets
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from agentops.kernel.ids import uuid7

from .logs import bind_contextvars, clear_contextvars

_PLAIN = re.compile(r"[A-Za-z0-9\-_.]{1,128}")
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

type _Next = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


def request_id(request: HttpRequest) -> str:
    return str(request.META["agentops.request_id"])


def trace_id(request: HttpRequest) -> str:
    return str(request.META["agentops.trace_id"])


def _prepare(request: HttpRequest) -> None:
    given = request.headers.get("X-Request-ID", "")
    found = _TRACEPARENT.fullmatch(request.headers.get("traceparent", "").strip())
    valid = found and found.group(1) != "0" * 32 and found.group(2) != "0" * 16
    request.META["agentops.request_id"] = given if _PLAIN.fullmatch(given) else str(uuid7())
    request.META["agentops.trace_id"] = found.group(1) if found and valid else secrets.token_hex(16)
    clear_contextvars()
    bind_contextvars(request_id=request_id(request), trace_id=trace_id(request))


class RequestContextMiddleware:
    """Outermost: every answer carries `X-Request-ID`, every log line of the request its ids."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: _Next) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._asynchronous(request)
        _prepare(request)
        response = self.get_response(request)
        response["X-Request-ID"] = request_id(request)  # type: ignore[index]
        return response

    async def _asynchronous(self, request: HttpRequest) -> HttpResponseBase:
        _prepare(request)
        response: HttpResponseBase = await self.get_response(request)  # type: ignore[misc]
        response["X-Request-ID"] = request_id(request)
        return response
