"""One child of the supervisor: started, noted down, started again when it dies, stopped within its time."""

import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentops.local.folder import Folder
from agentops.local.processes import ROOT, Account, end_group, spawn
from agentops.local.terminal import Tail, say

_BACKOFF_MAX_SECONDS = 30.0
_STEADY_SECONDS = 10.0


@dataclass
class Child:
    name: str
    argv: Sequence[str | Path]
    environment: Mapping[str, str]
    is_shown: bool = True
    cwd: Path = ROOT
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    hand_back: Callable[[str], None] | None = None
    """Set for a child that owns leases: what to do with them when it has died."""

    deaths: int = field(default=0, init=False)
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _lease_owner: str | None = field(default=None, init=False)
    _tail: Tail | None = field(default=None, init=False)
    _started_at: float = field(default=0.0, init=False)
    _due_at: float | None = field(default=None, init=False)
    _delay_seconds: float = field(default=1.0, init=False)

    @property
    def pid(self) -> int | None:
        return self._running.pid if self._running else None

    def start(self, folder: Folder) -> None:
        log = folder.log(self.name) if self._started_at else folder.open_log(self.name)
        if self.is_shown and self._tail is None:
            self._tail = Tail(self.name, log)
        environment = dict(self.environment)
        if self.hand_back:
            # Fresh at each start: what the one before leased must not look like its own.
            self._lease_owner = environment["AGENTOPS_WORKER_TOKEN"] = secrets.token_hex(16)
        self._running = spawn(
            self.argv,
            env=environment,
            log=log,
            dies_with_us=self.stop_signal,
            account=self.account,
            cwd=self.cwd,
        )
        self._started_at = time.monotonic()
        self._due_at = None
        folder.note_start(self.name, self._running.pid, self._lease_owner)

    def keep_alive(self, folder: Folder) -> None:
        if self._tail:
            self._tail.pump()
        if self._running and (code := self._running.poll()) is not None:
            self._bury(folder)
            self._schedule(f"died (signal {-code})" if code < 0 else f"died (exit code {code})")
            if self.hand_back and self._lease_owner:
                self.hand_back(self._lease_owner)
        elif self._due_at is not None and time.monotonic() >= self._due_at:
            try:
                self.start(folder)
            except OSError as error:  # no memory, no file descriptor, a full disk: it may pass
                self._schedule(f"could not be started ({error})")

    def _schedule(self, what: str) -> None:
        now = time.monotonic()
        if now - self._started_at >= _STEADY_SECONDS:
            self._delay_seconds = 1.0
        self.deaths += 1
        self._due_at = now + self._delay_seconds
        say(f"{self.name} {what}, starting again in {self._delay_seconds:.0f} s")
        self._delay_seconds = min(self._delay_seconds * 2, _BACKOFF_MAX_SECONDS)

    def send(self, signal_number: signal.Signals) -> None:
        if self._running:
            self._running.send_signal(signal_number)

    def has_stopped(self, folder: Folder) -> bool:
        if self._running and (code := self._running.poll()) is not None:
            self._bury(folder, owes_leases=self._lease_owner is not None and code != 0)
        if self._tail:
            self._tail.pump()
        return self._running is None

    def _bury(self, folder: Folder, owes_leases: bool = False) -> None:
        if self._running:
            end_group(self._running.pid)
            self._running = None
            folder.note_end(self.name, owes_leases=owes_leases)
