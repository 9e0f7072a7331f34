"""One `make up` of the real thing, on a port and in a folder of its own."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import psutil

from agentops.local.processes import spawn

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("beat", "worker", "web", "provider", "valkey", "postgres", "supervisor")
READY_SECONDS = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**changes: str) -> dict[str, str]:
    """Ours without what the outer `make test` has set: this start brings its own servers and its own make."""
    outer = ("DATABASE_URL", "REDIS_URL", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "T", "DJANGO_SETTINGS_MODULE")
    kept = {name: value for name, value in os.environ.items() if name not in outer}
    return {name: value for name, value in kept.items() if not name.startswith("AGENTOPS_")} | changes


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """A zombie has ended: some machines' first process does not reap orphans."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Stack:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output_file = data.with_suffix(".out")
        self._make: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As a person at a terminal would: make and what it starts are one process group."""
        self.output_file.write_bytes(b"")
        argv = ["make", "up", f"PORT={self.port}", f"AGENTOPS_DATA={self.data}"]
        # A hold that suits a test. It ends with the test run, also with one that is killed before it can tidy up.
        self._make = spawn(argv, env=environment(AGENTOPS_HOLD_SECONDS="1"), log=self.output_file)
        eventually(lambda: self._is_ready_or_over(), READY_SECONDS, "a line that begins with ready")
        assert self.is_up, self.output

    def _is_ready_or_over(self) -> bool:
        assert self._make
        return self._make.poll() is not None or any(
            line.startswith("ready ") for line in self.output.splitlines()
        )

    @property
    def is_up(self) -> bool:
        return self._make is not None and self._make.poll() is None

    @property
    def output(self) -> str:
        return self.output_file.read_text(errors="replace")

    @property
    def demo(self) -> dict[str, Any]:
        return json.loads((self.data / "demo.json").read_text())

    def pid(self, name: str) -> int:
        return int((self.data / "pids" / f"{name}.pid").read_text())

    def processes(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self.pid("supervisor"))
        return [supervisor, *supervisor.children(recursive=True)]

    def press_ctrl_c(self) -> tuple[int, list[str]]:
        """Returns make's exit code and the names of the processes in the order of their ends."""
        assert self._make
        deadline = time.monotonic() + 20
        ended: list[str] = []
        os.killpg(self._make.pid, signal.SIGINT)
        while self._make.poll() is None:
            assert time.monotonic() < deadline, self.output
            noted = {path.stem for path in (self.data / "pids").glob("*.pid")}
            ended += [name for name in NAMES if name not in noted and name not in ended]
            time.sleep(0.005)
        return self._make.returncode, ended

    def kill_supervisor(self) -> None:
        assert self._make
        os.kill(self.pid("supervisor"), signal.SIGKILL)
        self._make.wait(timeout=10)

    def request(
        self, path: str, token: str | None = None, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and body, read as JSON where it is."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        asked = urllib.request.Request(
            self.url + path, None if body is None else json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                status, kind, text = answer.status, answer.headers.get_content_type(), answer.read()
        except urllib.error.HTTPError as refusal:
            status, kind, text = refusal.code, refusal.headers.get_content_type(), refusal.read()
        return status, json.loads(text) if kind.endswith("json") else text.decode()

    def answers(self, path: str) -> bool:
        try:
            return self.request(path)[0] == 200
        except OSError:
            return False

    def open_stream(self, path: str, token: str) -> HTTPResponse:
        """An answer that has begun and is not read to its end; close it, or leave its `with`."""
        asked = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        return urllib.request.urlopen(asked, timeout=10)
