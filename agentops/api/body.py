"""Reading a request's body: JSON only, of bounded size, with text that can be stored."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Never

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from ninja.parser import Parser

from agentops.kernel.problems import BadRequest, Fault, Invalid, TooLarge, UnsupportedMedia

type _Receive = Callable[[], Awaitable[Any]]
type _Send = Callable[[Any], Awaitable[None]]
type _Application = Callable[[dict[str, Any], _Receive, _Send], Awaitable[None]]


def capped(application: _Application) -> _Application:
    """`application` with bodies cut one byte above their limit while they arrive, whatever their headers say.

    Django spools a whole body to disk before any view runs, so this is the only place where it can be stopped. A cut
    body of /v1 or /hooks is above the limit, so the door answers 413; what still arrives is dropped. A page's form has
    Django's own limit.
    """

    async def call(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return await application(scope, receive, send)
        is_public = scope["path"].startswith(("/v1/", "/hooks/"))
        left = (settings.AGENTOPS_BODY_BYTES if is_public else settings.DATA_UPLOAD_MAX_MEMORY_SIZE) + 1

        async def receive_capped() -> Any:
            nonlocal left
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                if left:
                    part = message.get("body", b"")[:left]
                    left -= len(part)
                    return {
                        **message,
                        "body": part,
                        "more_body": message.get("more_body", False) and left > 0,
                    }

        return await application(scope, receive_capped, send)

    return call


def check(request: HttpRequest) -> None:
    """Raises UnsupportedMedia for a body that is not JSON, TooLarge for one above the limit."""
    limit = settings.AGENTOPS_BODY_BYTES
    try:
        size = len(request.body)
    except RequestDataTooBig:
        size = limit + 1
    if size and request.content_type != "application/json":
        raise UnsupportedMedia("Send JSON, with `Content-Type: application/json`.")
    if size > limit:
        raise TooLarge(f"A body has at most {limit // 1024} KiB. Send less, or a link to what is large.")


class JsonParser(Parser):
    """JSON as RFC 8259 has it: UTF-8, each name once in an object, no NaN, and only text that PostgreSQL can store."""

    def parse_body(self, request: HttpRequest) -> Any:
        try:
            value = json.loads(request.body.decode(), object_pairs_hook=_object, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise BadRequest(
                f"The body is not valid JSON ({error}). Correct it and send it again.", code="malformed_json"
            ) from None
        faults = _unstorable(value)
        if faults:
            raise Invalid(
                "Some text cannot be stored; see `errors`. Remove it and send it again.", errors=faults
            )
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a name stands twice: {next(name for name in names if names.count(name) > 1)!r}")
    return fields


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON number")


def pointer(*parts: str | int) -> str:
    """The JSON pointer (RFC 6901) to a place in the body."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def _unstorable(value: Any) -> list[Fault]:
    """Every place with a NUL or a lone surrogate; nested as deep as the parser lets it be, hence no recursion."""
    faults: list[Fault] = []
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, item = waiting.pop()
        match item:
            case str():
                wrong = _wrong_with(item)
                if wrong:
                    faults.append({"pointer": _storable(place), "detail": wrong})
            case dict():
                waiting += [(place + pointer(name), field) for name, field in item.items()]
                waiting += [(place + pointer(name), name) for name in item]
            case list():
                waiting += [(place + pointer(index), field) for index, field in enumerate(item)]
    return sorted(faults, key=lambda fault: fault["pointer"])


def _wrong_with(text: str) -> str:
    if "\x00" in text:
        return "It has a NUL character."
    return "" if _storable(text) == text else "It has a lone surrogate: half of a character."


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
