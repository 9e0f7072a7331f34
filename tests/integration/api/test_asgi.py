"""The web process is ASGI: bodies are cut while they arrive, and sync views run beside each other."""

import asyncio

import httpx
import pytest
from django.core.asgi import get_asgi_application

from agentops.api.body import capped
from runs.models import AgentRun

KIB = 1024
needs_rows = pytest.mark.django_db(transaction=True)


@pytest.fixture
def send(caller):
    """`send(method, path, ...)` goes through the whole ASGI application, without a socket."""

    async def sent(method, path, **more):
        transport = httpx.ASGITransport(capped(get_asgi_application()))
        headers = {"Authorization": f"Bearer {caller.token}", "Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more | {"headers": headers | more.get("headers", {})})

    return lambda *args, **more: asyncio.run(sent(*args, **more))


class Chunks:
    """A body that arrives piece by piece, without a Content-Length."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def __aiter__(self):
        for piece in self.pieces:
            yield piece


@needs_rows
def test_a_body_without_a_length_is_measured_while_it_arrives(send):
    body = Chunks(b'{"agent": "support-agent", "input": "', *[b"x" * 64 * KIB] * 40, b'"}')
    answer = send("POST", "/v1/runs", content=body, headers={"Idempotency-Key": "k"})
    assert "Content-Length" not in answer.request.headers
    assert answer.status_code == 413
    assert answer.json()["code"] == "body_too_large"


@needs_rows
def test_a_body_that_claims_to_be_short_is_measured_all_the_same(send):
    headers = {"Idempotency-Key": "k", "Content-Length": "10"}
    answer = send("POST", "/v1/runs", content=Chunks(b"x" * 300 * KIB), headers=headers)
    assert answer.status_code == 413


@needs_rows
def test_a_chunked_body_within_the_limit_is_taken_whole(send):
    body = Chunks(b'{"agent": "support-agent", ', b'"input": "' + b"x" * 200 * KIB, b'"}')
    assert send("POST", "/v1/runs", content=body, headers={"Idempotency-Key": "k"}).status_code == 201
    assert AgentRun.objects.count() == 1


@needs_rows
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/x", 404), ("PUT", "/v1/runs", 405), ("GET", "/v1/runs/x", 404)],
)
def test_problems_leave_the_asynchronous_process_too(send, method, path, status):
    answer = send(method, path)
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"]


@pytest.mark.parametrize(
    ("path", "kib"), [("/v1/runs", 256), ("/hooks/con_x", 256), ("/admin/login/", 1024), ("/", 1024)]
)
async def test_no_more_than_the_limit_and_a_byte_reaches_the_application(path, kib):
    """Django spools what it is given, so it must not be given more."""
    taken = []

    async def application(scope, receive, send):
        while True:
            message = await receive()
            taken.append(len(message.get("body", b"")))
            if not message.get("more_body"):
                break
        assert (await receive())["type"] == "http.disconnect"

    pieces = iter([b"x" * 100 * KIB] * 30)

    async def receive():
        piece = next(pieces, None)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(message):
        raise AssertionError("nothing is sent")

    await capped(application)({"type": "http", "path": path}, receive, send)
    assert sum(taken) == kib * KIB + 1


async def test_a_pages_form_within_its_limit_is_kept_whole():
    taken = []

    async def application(scope, receive, send):
        taken.append(len((await receive())["body"]))

    async def receive():
        return {"type": "http.request", "body": b"x" * 1000 * KIB, "more_body": False}

    await capped(application)({"type": "http", "path": "/admin/"}, receive, None)
    assert taken == [1000 * KIB]
