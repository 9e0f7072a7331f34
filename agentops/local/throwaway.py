"""Runs a command beside a PostgreSQL and a Valkey of its own, which are gone when it has ended.

    python -m agentops.local.throwaway -- pytest tests/integration

DATABASE_URL or REDIS_URL, where set, name a server of yours that is used instead.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from agentops.local import valkey
from agentops.local.ports import find_free
from agentops.local.postgres import Cluster
from agentops.local.processes import SERVER_ENVIRONMENT, spawn
from agentops.local.terminal import CannotStart, last_lines, say

_READY_SECONDS = 60.0


def main(argv: Sequence[str]) -> int:
    if argv[:1] != ["--"] or len(argv) < 2:
        say("usage: python -m agentops.local.throwaway -- command [argument ...]")
        return 2
    command: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not command:
            sys.exit(128 + number)
        if number != signal.SIGINT:  # the terminal has sent that one to the command as well
            command[0].send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        with _room() as room, _postgres(room) as database_url, _valkey(room) as redis_url:
            urls = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "AGENTOPS_DATA": str(room / "data")}
            command.append(subprocess.Popen(argv[1:], env=os.environ | urls))
            code = command[0].wait()
    except CannotStart as refusal:
        say(str(refusal))
        return 1
    return code if code >= 0 else 128 - code


@contextmanager
def _room() -> Iterator[Path]:
    # Root's own temporary folder may be closed to the account that PostgreSQL runs as.
    room = Path(tempfile.mkdtemp(prefix="agentops-", dir="/var/tmp" if os.geteuid() == 0 else None))
    room.chmod(0o711)
    (room / "data").mkdir()
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


@contextmanager
def _postgres(room: Path) -> Iterator[str]:
    if own := os.environ.get("DATABASE_URL"):
        yield own
        return
    log = room / "postgres.log"
    cluster = Cluster(
        room / "postgres", port=find_free(set()), password=secrets.token_urlsafe(16), log=log, durable=False
    )
    cluster.prepare()
    server = spawn(
        cluster.command,
        env=SERVER_ENVIRONMENT,
        log=log,
        dies_with_us=signal.SIGQUIT,
        account=cluster.account,
        cwd=cluster.data,
    )
    with _stopping(server, signal.SIGQUIT):
        _wait("PostgreSQL", server, lambda: cluster.is_ready(server.pid), log)
        yield cluster.url


@contextmanager
def _valkey(room: Path) -> Iterator[str]:
    if own := os.environ.get("REDIS_URL"):
        yield own
        return
    port, log = find_free(set()), room / "valkey.log"
    server = spawn(valkey.command(port, room), env=SERVER_ENVIRONMENT, log=log)
    with _stopping(server, signal.SIGTERM):
        _wait("Valkey", server, lambda: valkey.is_ready(port), log)
        yield valkey.url(port)


@contextmanager
def _stopping(server: subprocess.Popen[bytes], how: signal.Signals) -> Iterator[None]:
    try:
        yield
    finally:
        server.send_signal(how)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(name: str, server: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise CannotStart(f"{name} does not start; the last lines of its log:\n{last_lines(log)}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
