"""The WebSockets: a run's events with cancel, and a bell for the approvals inbox."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from channels.routing import URLRouter
from channels.sessions import CookieMiddleware
from django.conf import settings
from django.db import DatabaseError
from django.http.request import validate_host
from django.urls import re_path

from agentops.engine.control import AlreadyEnded, CancelReceipt, cancel_run
from agentops.kernel.ids import uuid7
from agentops.kernel.problems import BadRequest, Fault, NotFound, NotYours, Problem, Unauthorized, Unavailable
from agentops.kernel.redaction import storable
from agentops.telemetry.logs import logger
from approvals.queries import tenants_for

from .callers import Caller, SessionCaller, TokenCaller, arrive, may_still_read
from .database import in_database
from .follow import Withdrawn, follow
from .live import Live
from .positions import Start, start, under_way

log = logger(__name__)

type Scope = dict[str, Any]
type Receive = Callable[[], Awaitable[dict[str, Any]]]
type Send = Callable[[dict[str, Any]], Awaitable[None]]

DONE, RESTARTING, TRY_AGAIN = 1000, 1012, 1013
NOT_SIGNED_IN, NOT_YOURS, NOT_FOUND = 4401, 4403, 4404
_CODES: dict[type[Problem], int] = {Unauthorized: NOT_SIGNED_IN, NotYours: NOT_YOURS, NotFound: NOT_FOUND}


async def run_socket(scope: Scope, receive: Receive, send: Send) -> None:
    run_id = scope["url_route"]["kwargs"]["run_id"]
    caller = _caller(scope)
    position = parse_qs(scope["query_string"].decode("latin-1")).get("after", [""])[0]
    begin = await _open(receive, send, lambda: start(arrive(caller, run_id), position))
    if begin is not None:
        events = _send_events(_live(scope), begin, caller, send)
        await converse(receive, send, events, partial(_answer, caller, run_id, scope["path"]))


async def approvals_socket(scope: Scope, receive: Receive, send: Send) -> None:
    caller = SessionCaller(_session_key(scope))
    tenants = await _open(receive, send, partial(_watched, caller))
    if tenants is not None:
        await converse(receive, send, _send_counts(_live(scope), tenants, caller, send), None)


async def _open[T](receive: Receive, send: Send, find: Callable[[], T]) -> T | None:
    """What `find` finds, on an accepted socket; None where it was closed with the reason.

    Accepted first: a browser is told a close code only of a socket that was open.
    """
    await receive()
    await send({"type": "websocket.accept"})
    try:
        return await in_database(find)
    except Problem as problem:
        code, reason = _CODES.get(type(problem), NOT_YOURS), problem.detail
    except DatabaseError as error:
        log.warning("socket_refused", error=type(error).__name__)
        code, reason = TRY_AGAIN, "The database cannot be read now."
    await send({"type": "websocket.close", "code": code, "reason": reason[:120]})
    return None


async def converse(
    receive: Receive,
    send: Send,
    sending: Coroutine[Any, Any, int],
    answer: Callable[[str], dict[str, Any]] | None,
) -> None:
    """Send until `sending` ends with a close code, or until the client leaves; answer its messages meanwhile."""
    answering = asyncio.Lock()
    sender = asyncio.create_task(sending)
    listener = asyncio.create_task(_listen(receive, send, answer, answering))
    try:
        await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
        if sender.done():
            # A cancel ends the run it answers for: its receipt goes out before we close.
            async with answering:
                await send({"type": "websocket.close", "code": sender.result()})
        else:
            listener.result()
    except OSError:  # the client left while we wrote
        pass
    finally:
        sender.cancel()
        listener.cancel()
        await asyncio.gather(sender, listener, return_exceptions=True)


async def _listen(
    receive: Receive, send: Send, answer: Callable[[str], dict[str, Any]] | None, answering: asyncio.Lock
) -> None:
    while (message := await receive())["type"] != "websocket.disconnect":
        if answer is not None:
            async with answering:
                told = await in_database(answer, message.get("text") or "")
                await send({"type": "websocket.send", "text": json.dumps(told, ensure_ascii=False)})


async def _send_events(live: Live, begin: Start, caller: Caller, send: Send) -> int:
    run = begin.run
    if begin.reset:
        await send({"type": "websocket.send", "text": begin.reset.text})
    if begin.is_past_the_end:
        return DONE
    allowed = partial(may_still_read, caller, run.public_id)
    try:
        async with aclosing(follow(live.tail, run.id, begin.after, allowed)) as frames:
            async for frame in frames:
                if frame is not None:
                    await send({"type": "websocket.send", "text": frame.text})
    except Withdrawn:
        return NOT_YOURS
    except DatabaseError as error:
        log.warning("socket_cut", run_id=run.public_id, error=type(error).__name__)
        return TRY_AGAIN
    return RESTARTING if live.tail.closing else DONE


async def _send_counts(live: Live, tenants: dict[int, str], caller: SessionCaller, send: Send) -> int:
    """The counts at once, then each time they change; the page fetches what it shows."""
    recheck_seconds = settings.AGENTOPS_STREAM_RECHECK_SECONDS
    loop = asyncio.get_running_loop()
    checked_at = loop.time()
    watcher = live.inbox.enter(tenants)
    try:
        while not live.inbox.closing:
            try:
                async with asyncio.timeout(max(0.0, checked_at + recheck_seconds - loop.time())):
                    await watcher.changed.wait()
            except TimeoutError:
                checked_at = loop.time()
                if await in_database(_watched, caller) != tenants:
                    return NOT_YOURS
                continue
            watcher.changed.clear()
            waiting = {
                slug: live.inbox.waiting[key][0] for key, slug in tenants.items() if key in live.inbox.waiting
            }
            told = {"type": "approvals.changed", "waiting": sum(waiting.values()), "tenants": waiting}
            await send({"type": "websocket.send", "text": json.dumps(told)})
    except Unauthorized:
        return NOT_SIGNED_IN
    except NotYours:
        return NOT_YOURS
    except DatabaseError:
        return TRY_AGAIN
    finally:
        live.inbox.leave(watcher)
    return RESTARTING


def _watched(caller: SessionCaller) -> dict[int, str]:
    tenants = dict(tenants_for(caller.person(), "view_approvals").values_list("id", "slug"))
    if not tenants:
        raise NotYours("You may not see the approvals of any tenant; ask an administrator.")
    return tenants


def _answer(caller: Caller, run_id: str, instance: str, text: str) -> dict[str, Any]:
    """What a client's message comes to: there is one kind, `{"type": "cancel", "reason": "…"}`."""
    try:
        reason = _reason(text)
        run = caller.run(run_id)
        try:
            receipt = cancel_run(run.tenant_id, run.id, actor=caller.canceller(run), reason=reason)
        except AlreadyEnded as ended:
            receipt = ended.receipt
    except (Problem, DatabaseError) as error:
        problem = (
            error
            if isinstance(error, Problem)
            else Unavailable("The database cannot be read now. Try again.")
        )
        return {"type": "problem", "problem": problem.body(instance=instance, request_id=str(uuid7()))}
    return _receipt_body(receipt)


def _reason(text: str) -> str:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or message.get("type") != "cancel":
        raise BadRequest('Send {"type": "cancel", "reason": "…"}; nothing else is understood here.')
    reason = message.get("reason", "")
    if not isinstance(reason, str):
        raise BadRequest("`reason` is a text.", errors=[Fault(pointer="/reason", detail="not a text")])
    return storable(reason)


def _receipt_body(receipt: CancelReceipt) -> dict[str, Any]:
    run = receipt.run
    effects = [asdict(effect) for effect in receipt.effects]
    for effect in effects:
        if not effect["provider_ref"]:
            del effect["provider_ref"]
    body = {"run_id": run.public_id, "status": run.status, "requested_by": receipt.requested_by}
    return {"type": "cancel.receipt"} | body | {"reason": receipt.reason, "effects": effects} | under_way(run)


def _caller(scope: Scope) -> Caller:
    authorization = _header(scope, b"authorization")
    if authorization:
        return TokenCaller(authorization, "websocket")
    return SessionCaller(_session_key(scope))


def _session_key(scope: Scope) -> str | None:
    return cast("str | None", scope["cookies"].get(settings.SESSION_COOKIE_NAME))


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _live(scope: Scope) -> Live:
    return cast(Live, scope["state"]["live"])


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close"})


def _same_origin(scope: Scope) -> bool:
    """Whether a page of ours opened the socket: a session rides on a cookie, which any page's script can send."""
    origin = _header(scope, b"origin")
    if _header(scope, b"authorization"):  # no page can set this header, so nothing rides along unseen
        return True
    if origin in (settings.AGENTOPS_BASE_URL, *settings.CSRF_TRUSTED_ORIGINS):
        return True
    host = _header(scope, b"host")
    scheme = "https" if scope["scheme"] == "wss" else "http"
    name = urlsplit(f"//{host}").hostname or ""
    return origin == f"{scheme}://{host}" and validate_host(name, settings.ALLOWED_HOSTS)


def _from_our_pages(inner: Callable[[Scope, Receive, Send], Awaitable[None]]) -> Any:
    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        await (inner if _same_origin(scope) else _unknown)(scope, receive, send)

    return checked


# A route's callable is a socket here, not a view.
ROUTES: Final[list[tuple[str, Any]]] = [
    (r"^ws/runs/(?P<run_id>[^/]+)$", run_socket),
    (r"^ws/approvals$", approvals_socket),
    (r"", _unknown),
]
# Only cookies are read here, no session: the callers read it anew from the database each time they are asked.
application = _from_our_pages(
    CookieMiddleware(URLRouter([re_path(pattern, socket) for pattern, socket in ROUTES]))
)
