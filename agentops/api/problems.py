"""Whatever goes wrong under /v1 and /hooks leaves as problem+json: the one place where an error becomes an answer."""

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.errors import HttpError, ValidationError

from agentops.kernel.problems import (
    BadRequest,
    Fault,
    Internal,
    Invalid,
    NotAllowed,
    NotFound,
    NotYours,
    Problem,
    Unavailable,
)
from agentops.telemetry.logs import logger
from agentops.telemetry.requests import request_id

from .body import pointer

log = logger(__name__)

MEDIA_TYPE = "application/problem+json"
EXTRA_HEADERS = "agentops.extra_headers"  # in request.META: what the door adds to every answer
MAX_FAULTS = 20

type _Next = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


def is_public(request: HttpRequest) -> bool:
    return request.path_info == "/v1" or request.path_info.startswith(("/v1/", "/hooks/"))


def answer(request: HttpRequest, problem: Problem) -> HttpResponse:
    body = problem.body(instance=request.path, request_id=request_id(request))
    return HttpResponse(
        json.dumps(body), status=problem.status, content_type=MEDIA_TYPE, headers=problem.headers
    )


class ProblemMiddleware:
    """Turns exceptions of the views under /v1 and /hooks, and Django's own error pages there, into problem+json."""

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
        return _finished(request, self.get_response(request))  # type: ignore[arg-type]

    async def _asynchronous(self, request: HttpRequest) -> HttpResponseBase:
        return _finished(request, await self.get_response(request))  # type: ignore[misc]

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return answer(request, problem_of(request, error)) if is_public(request) else None


def _finished(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if not is_public(request):
        return response
    if response.status_code >= HTTPStatus.BAD_REQUEST and response.get("Content-Type") != MEDIA_TYPE:
        response = _instead_of(request, response)
    for name, value in request.META.get(EXTRA_HEADERS, {}).items():
        response[name] = value
    return response


def _instead_of(request: HttpRequest, page: HttpResponseBase) -> HttpResponse:
    """Our answer in place of one of Django's error pages, with the headers that other middleware gave that page."""
    response = answer(request, _problem_of_page(request, page))
    for name, value in page.items():
        if name not in ("Content-Type", "Content-Length"):
            response.setdefault(name, value)
    return response


def _problem_of_page(request: HttpRequest, response: HttpResponseBase) -> Problem:
    """What one of Django's error pages says; it is never an answer of ours."""
    match response.status_code:
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = response.get("Allow", "")
            return NotAllowed(f"{request.method} is no method of this address; it knows {allowed}.")
        case HTTPStatus.NOT_FOUND:
            return NotFound("There is nothing at this address. GET /v1/docs lists all of them.")
        case HTTPStatus.FORBIDDEN:
            return NotYours("This request was refused. GET /v1/docs says how to send it.")
        case status if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return BadRequest("This request cannot be read. GET /v1/docs says how to send it.")
    return _internal()


def problem_of(request: HttpRequest, error: Exception) -> Problem:
    """What a caller is told about `error`; an unexpected one is logged and masked."""
    match error:
        case Problem():
            return error
        case ValidationError():
            return _invalid(request, error)
        case HttpError(__cause__=Problem() as cause):
            return cause  # raised by our parser, wrapped by ninja
        case Http404():
            return NotFound("There is nothing at this address. GET /v1/docs lists all of them.")
        case PermissionDenied():
            return NotYours("This request was refused. GET /v1/docs says how to send it.")
        case SuspiciousOperation():
            return BadRequest("This request cannot be read. GET /v1/docs says how to send it.")
        case OperationalError() | InterfaceError():
            log.error("database_unavailable", error=type(error).__name__, exc_info=error)
            return Unavailable(
                "The database does not answer now. Repeat the request later: with the same Idempotency-Key, nothing"
                " is done twice.",
                headers={"Retry-After": "5"},
            )
    log.error("unexpected_error", path=request.path, exc_info=error)
    return _internal()


def _internal() -> Internal:
    return Internal(
        "An error of ours; it is in our log under this request_id. Repeating the request with the same Idempotency-Key"
        " is safe."
    )


def _invalid(request: HttpRequest, error: ValidationError) -> Problem:
    places, faults = [], []
    for found in error.errors[:MAX_FAULTS]:
        source, argument, *rest = found["loc"]
        if source == "body" and not request.body:
            return BadRequest("The body is empty. Send a JSON object.", code="malformed_json")
        # A body's place begins with the view's name for the whole body, which no client knows.
        place = pointer(*rest) if source == "body" else ""
        places.append((place or "the body") if source == "body" else f"?{argument}=")
        faults.append(Fault(pointer=place, detail=_words(found)))
    return Invalid(
        f"Not valid: {', '.join(places)}. See `errors`, correct it and send it again.", errors=faults
    )


def _words(found: dict[str, object]) -> str:
    match found["type"]:
        case "extra_forbidden":
            return "There is no such field."
        case "missing":
            return "This field is required."
        case "value_error":
            return str(found["msg"]).removeprefix("Value error, ").capitalize() + "."
    return f"{found['msg']}."
