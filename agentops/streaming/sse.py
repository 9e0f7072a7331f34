"""GET /v1/runs/{id}/events: a run's log as Server-Sent Events, or page by page as JSON."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from agentops.kernel.problems import BadRequest, Fault, Invalid, NotAllowed, Unavailable
from agentops.telemetry.logs import logger
from runs.queries import events_after

from .callers import TokenCaller, arrive, may_still_read
from .database import in_database
from .follow import Withdrawn, follow
from .frames import body_of
from .live import Live
from .positions import Start, start

log = logger(__name__)

RETRY_MILLISECONDS = 1_000
LIMIT, LIMIT_MOST = 100, 500
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


@csrf_exempt  # no cookie counts here: whoever has the token in a header may ask
async def run_events(request: HttpRequest, run_id: str) -> HttpResponseBase:
    if request.method != "GET":
        raise NotAllowed("A run's events can only be read. Use GET.", headers={"Allow": "GET"})
    caller = TokenCaller(request.headers.get("Authorization", ""), "rest")
    if request.get_preferred_type(["text/event-stream", "application/json"]) == "application/json":
        return await in_database(_page, request, caller, run_id)
    begin = await in_database(_start, request, caller, run_id)
    if begin.is_past_the_end and not begin.reset:
        return HttpResponse(status=204, headers=HEADERS)
    return StreamingHttpResponse(
        _lines(_live(request), begin, caller), content_type="text/event-stream", headers=HEADERS
    )


async def _lines(live: Live, begin: Start, caller: TokenCaller) -> AsyncIterator[bytes]:
    run = begin.run
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    if begin.reset:
        yield begin.reset.sse
        if begin.is_past_the_end:
            return
    allowed = partial(may_still_read, caller, run.public_id)
    try:
        async with aclosing(follow(live.tail, run.id, begin.after, allowed)) as frames:
            async for frame in frames:
                yield frame.sse if frame else b": still here\n\n"
    except (Withdrawn, DatabaseError) as error:  # the client comes back with its position and is told why
        log.info("stream_cut", run_id=run.public_id, why=type(error).__name__)
    if live.tail.closing:
        yield b": bye, come back with your position\n\n"


def _start(request: HttpRequest, caller: TokenCaller, run_id: str) -> Start:
    position = request.headers.get("Last-Event-ID") or request.GET.get("after")
    return start(arrive(caller, run_id), position)


def _page(request: HttpRequest, caller: TokenCaller, run_id: str) -> HttpResponse:
    begin = _start(request, caller, run_id)
    run = begin.run
    if begin.reset:
        raise BadRequest(
            f"The events of this run go from {begin.oldest} to {run.last_event_seq}; `after` is no place among them."
            f" Read on from {begin.after}.",
            code=begin.reason,
            errors=[Fault(pointer="/after", detail="not a place in this run's events")],
        )
    items = [body_of(event) for event in events_after(run.id, begin.after, _limit(request))]
    last = items[-1]["seq"] if items else begin.after
    next_after = last if last < run.last_event_seq else None
    return JsonResponse({"items": items, "next_after": next_after, "last_event_seq": run.last_event_seq})


def _limit(request: HttpRequest) -> int:
    text = request.GET.get("limit", str(LIMIT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= limit <= LIMIT_MOST:
        faults = [Fault(pointer="/limit", detail="out of range")]
        raise Invalid(f"`limit` is a number from 1 to {LIMIT_MOST}.", errors=faults)
    return limit


def _live(request: HttpRequest) -> Live:
    state: dict[str, Any] = getattr(request, "scope", {}).get("state", {})
    if "live" not in state:
        raise Unavailable("This process serves no streams: start the web process with `manage.py serve`.")
    return cast(Live, state["live"])
