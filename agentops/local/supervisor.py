"""Keeps children alive in the order they were added, and stops them in the opposite one within a given time."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from agentops.local.children import Child
from agentops.local.folder import Folder
from agentops.local.processes import end_group, spawn
from agentops.local.terminal import CannotStart, last_lines, say

# The order of stopping, and how long after the first request each must have ended; those in one line are asked
# together. Whoever comes later also has the time that those before it did not need.
STOP_ORDER = (("beat", "worker"), ("web",), ("provider",), ("valkey",), ("postgres",))
_STOP_BY_SECONDS = {
    "beat": 15.0,
    "worker": 15.0,
    "web": 17.0,
    "provider": 17.5,
    "valkey": 18.0,
    "postgres": 19.0,
}
# PostgreSQL's fast shutdown; at SIGTERM it would wait for every client to leave.
STOP_SIGNAL = {"postgres": signal.SIGINT}
# SIGQUIT makes PostgreSQL leave at once, to recover at its next start.
_HARD_STOP_SIGNAL = {"postgres": signal.SIGQUIT}

_TURN_SECONDS = 0.1
_HASTY_SECONDS = 0.3
_DEATHS_BEFORE_GIVING_UP = 3


class Interrupted(Exception):
    """We were asked to stop while something was still being waited for."""


class Supervisor:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._children: list[Child] = []
        self._errands: list[subprocess.Popen[bytes]] = []
        self._asked_to_stop = 0
        self._asked_at = 0.0
        self._woken = self._take_signals()
        folder.note_start("supervisor", os.getpid())

    def _take_signals(self) -> int:
        """The handlers only note; a byte in the pipe ends the wait of the turn under way."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._note_request)
        return woken

    def _note_request(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        # One kill of the whole group reaches us twice: by itself, and passed on by make.
        if not self._asked_to_stop or now - self._asked_at > 0.5:
            self._asked_to_stop += 1
            self._asked_at = now

    def _wait_a_turn(self) -> None:
        if select.select([self._woken], [], [], _TURN_SECONDS)[0]:
            os.read(self._woken, 512)

    # Running

    def turn(self) -> None:
        """Waits a moment, then does what has become due. Raises Interrupted when we were asked to stop."""
        self._wait_a_turn()
        if self._asked_to_stop:
            raise Interrupted
        for child in self._children:
            child.keep_alive(self._folder)
        self._errands = [errand for errand in self._errands if errand.poll() is None]

    def keep_alive(self) -> None:
        while True:
            self.turn()

    def add(self, child: Child) -> Child:
        self._children.append(child)
        child.start(self._folder)
        return child

    def wait_until_ready(self, child: Child, is_ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_ready():
            self.turn()
            if child.deaths >= _DEATHS_BEFORE_GIVING_UP or time.monotonic() > deadline:
                log = self._folder.log(child.name)
                raise CannotStart(
                    f"{child.name} does not start, see {log}; its last lines:\n{last_lines(log)}"
                )

    def errand(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Starts something that ends by itself; its output goes to a log file of that name."""
        errand = spawn(argv, env=environment, log=self._folder.open_log(name))
        self._errands.append(errand)
        return errand

    def finish(self, name: str, errand: subprocess.Popen[bytes]) -> None:
        while errand.poll() is None:
            self.turn()
        if errand.returncode != 0:
            log = self._folder.log(name)
            raise CannotStart(
                f"{name} failed (exit code {errand.returncode}), see {log}; its last lines:\n{last_lines(log)}\n"
                "Mend that and start again: what was done so far is kept."
            )

    # Stopping

    def stop(self) -> None:
        begun = time.monotonic()
        if self._children:
            say("stopping " + ", ".join(child.name for child in reversed(self._children)))
        for errand in self._errands:
            with suppress(ProcessLookupError):
                os.killpg(errand.pid, signal.SIGTERM)
        for names in STOP_ORDER:
            together = [child for child in self._children if child.name in names]
            self._stop_together(together, begun + max(_STOP_BY_SECONDS[name] for name in names))
        for errand in self._errands:
            end_group(errand.pid)
        self._folder.note_end("supervisor")

    def _stop_together(self, children: list[Child], deadline: float) -> None:
        for child in children:
            child.send(STOP_SIGNAL.get(child.name, signal.SIGTERM))
        if self._have_stopped_by(deadline, children):
            return
        for child in children:
            if not child.has_stopped(self._folder):
                say(f"{child.name} did not stop in time and is ended")
                child.send(_HARD_STOP_SIGNAL.get(child.name, signal.SIGKILL))
        if not self._have_stopped_by(time.monotonic() + _HASTY_SECONDS, children):
            for child in children:
                child.send(signal.SIGKILL)
            self._have_stopped_by(time.monotonic() + _HASTY_SECONDS, children)

    def _have_stopped_by(self, deadline: float, children: list[Child]) -> bool:
        begun = time.monotonic()
        # all() over a list: each child's log is shown and each end is noted, also behind one that still runs.
        while not all([child.has_stopped(self._folder) for child in children]):
            is_hasty = self._asked_to_stop > 1
            if time.monotonic() > (min(deadline, begun + _HASTY_SECONDS) if is_hasty else deadline):
                return False
            self._wait_a_turn()
        return True

    def end_left_overs(self) -> str | None:
        """Ends what a killed supervisor left running; returns the lease owner that its worker was, if any."""
        begun = time.monotonic()
        noted = self._folder.noted()
        for names in STOP_ORDER:
            left = {name: noted[name] for name in names if name in noted and noted[name].is_alive}
            for name, process in left.items():
                say(f"  ending {name} (process {process.pid}), which a killed supervisor left behind")
                with suppress(ProcessLookupError):
                    os.kill(process.pid, STOP_SIGNAL.get(name, signal.SIGTERM))
            deadline = begun + max(_STOP_BY_SECONDS[name] for name in names)
            while any(process.is_alive for process in left.values()):
                self.turn()
                if time.monotonic() > deadline:
                    for process in left.values():
                        end_group(process.pid)
                    break
        for name in noted.keys() - {"supervisor"}:
            self._folder.note_end(name)
        return noted["worker"].lease_owner if "worker" in noted else None
