"""`make up`: everything AgentOps needs, on this machine, until Ctrl-C."""

import os
import sys

from agentops.local.folder import Folder
from agentops.local.ports import HOST
from agentops.local.processes import ROOT
from agentops.local.start import start
from agentops.local.supervisor import Interrupted, Supervisor
from agentops.local.terminal import CannotStart, say


def main() -> int:
    try:
        port = _port()
        folder = Folder((ROOT / (os.environ.get("AGENTOPS_DATA") or ".agentops")).resolve())
        folder.lock(f"http://{HOST}:{port}/")
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
    text = os.environ.get("PORT") or "8000"
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise CannotStart(
            f"PORT={text} is not a port: give a number from 1 to 65535, as in `make up PORT=8001`."
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
