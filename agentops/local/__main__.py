"""`make up`: everything AgentOps needs, on this machine, until Ctrl-C."""

import os
import sys

from agentops.local.folder import Folder
from agentops.local.ports import HOST, is_free
from agentops.local.processes import ROOT
from agentops.local.start import start
from agentops.local.supervisor import Interrupted, Supervisor
from agentops.local.terminal import CannotStart, say


def main() -> int:
    try:
        port = _port()
        folder = Folder((ROOT / os.environ.get("AGENTOPS_DATA", ".agentops")).resolve())
        folder.lock(f"http://{HOST}:{port}/")
        _refuse_taken(port)
    except CannotStart as refusal:
        say(str(refusal))
        return 1
    return _supervise(folder, port)


def _supervise(folder: Folder, port: int) -> int:
    supervisor = Supervisor(folder)
    try:
        start(supervisor, folder, port)
        supervisor.keep_alive()
    except Interrupted:
        return 0
    except CannotStart as refusal:
        say(str(refusal))
        return 1
    finally:
        supervisor.stop()
    return 0


def _port() -> int:
    text = os.environ.get("PORT", "8000")
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise CannotStart(
            f"PORT={text} is not a port: give a number from 1 to 65535, as in `make up PORT=8001`."
        )
    return int(text)


def _refuse_taken(port: int) -> None:
    try:
        free = is_free(port)
    except PermissionError as error:
        raise CannotStart(
            f"Port {port} is reserved for root: choose another, as in `make up PORT=8000`."
        ) from error
    if not free:
        other = next((number for number in range(port + 1, min(port + 100, 65536)) if is_free(number)), 8000)
        raise CannotStart(
            f"Port {port} is taken by another program: stop that one, or choose another port, "
            f"as in `make up PORT={other}`."
        )


if __name__ == "__main__":
    sys.exit(main())
