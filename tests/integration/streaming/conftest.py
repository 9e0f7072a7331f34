"""A real `manage.py serve` beside the tests, and runs whose events they write themselves."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase

from agentops.tenancy.models import Tenant
from runs.events import Event, append
from runs.services import lock
from tests import factories

type Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ROOT = Path(__file__).resolve().parents[3]
QUICK = {
    "AGENTOPS_STREAM_HEARTBEAT_SECONDS": "1",
    "AGENTOPS_STREAM_RECHECK_SECONDS": "1",
    "AGENTOPS_STREAM_STALL_SECONDS": "2",
}


@pytest.fixture(scope="package")
def db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """In place of pytest-django's: rows that other processes see, of tenants that each test makes; all go at the end."""
    with django_db_blocker.unblock():
        yield
        TransactionTestCase()._fixture_teardown()


def wait_for(what: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come to pass in time"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_environment(**more: str) -> dict[str, str]:
    db = connection.settings_dict
    url = f"postgresql://{quote(db['USER'])}:{quote(db['PASSWORD'])}@{db['HOST']}:{db['PORT']}/{quote(db['NAME'])}"
    return os.environ | {"AGENTOPS_DEMO": "1", "DATABASE_URL": url, "AGENTOPS_LOG_JSON": "0"} | more


@dataclass
class Served:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@contextmanager
def serve(**environment: str) -> Iterator[Served]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "serve", "--port", str(port)],
        cwd=ROOT,
        env=serve_environment(PORT=str(port), **environment),
        start_new_session=True,
    )
    served = Served(port, process)
    try:
        wait_for(lambda: process.poll() is not None or answers(port), 40)
        assert process.poll() is None
        yield served
    finally:
        served.stop()


@pytest.fixture(scope="package")
def served(db: None) -> Iterator[Served]:
    with serve(**QUICK) as process:
        yield process


@dataclass
class House:
    """A tenant with a token that reads runs."""

    tenant: Tenant
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@pytest.fixture
def house(db: None) -> Callable[[], House]:
    def make() -> House:
        with transaction.atomic():
            tenant = factories.tenant()
            return House(tenant, factories.token(tenant, "runs:read"))

    return make


class Story:
    """A run whose events the test writes; its first is `run.created`."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.run = factories.run(tenant)
        self.id = self.run.public_id

    def say(self, count: int, text: str = "word") -> int:
        """Write `count` events; returns the number of the last."""
        with transaction.atomic():
            run = lock(self.tenant.id, self.run.id)
            return append(run, *(Event("assistant.delta", {"text": f"{text} {n}"}) for n in range(count)))

    def end(self, status: str = "completed") -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            run = lock(self.tenant.id, self.run.id)
            cursor.execute(
                "UPDATE runs_agentrun SET status = %s, finished_at = agentops_now(), ready_at = NULL WHERE id = %s",
                [status, run.id],
            )
            append(run, Event(f"run.{status}", {}))

    def forget_before(self, seq: int) -> None:
        """What retention does: the oldest events are gone."""
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM runs_runevent WHERE run_id = %s AND seq < %s", [self.run.id, seq])


def backends() -> int:
    """How many connections the other processes have open, in use or resting in their pools."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def asking(home: House, story: Story) -> bytes:
    """The request for a stream, as it goes over the wire."""
    lines = [
        f"GET /v1/runs/{story.id}/events HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {home.token}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def open_streams(served: Served, home: House, story: Story, count: int) -> list[Pipe]:
    """`count` bare connections that follow the run; the first event of each has come."""

    async def one() -> Pipe:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        lines = [
            f"GET /v1/runs/{story.id}/events HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {home.token}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readuntil(b"event: run.created")
        return reader, writer

    opened: list[Pipe] = []
    while len(opened) < count:
        opened += await asyncio.gather(*(one() for _ in range(min(25, count - len(opened)))))
    return opened
