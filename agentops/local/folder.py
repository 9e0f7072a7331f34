"""AGENTOPS_DATA: the lock of its one supervisor, and what a start leaves there for the next one."""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentops.local import ports
from agentops.local.processes import born
from agentops.local.terminal import CannotStart

_LOG_LIMIT_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True)
class Started:
    """A process as it was noted down: still the same one only while `born` agrees."""

    pid: int
    born: str | None
    lease_owner: str | None = None

    @property
    def is_alive(self) -> bool:
        return self.born is not None and born(self.pid) == self.born


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs = root / "logs"
        self._pids = root / "pids"
        self._secrets = root / "secrets"
        try:
            # Others may pass through (PostgreSQL does not run as root) but not look around.
            root.mkdir(mode=0o711, parents=True, exist_ok=True)
            for path, mode in ((self.logs, 0o755), (self._pids, 0o755), (self._secrets, 0o700)):
                path.mkdir(mode=mode, exist_ok=True)
            self._lock = (root / "supervisor.lock").open("a+")
        except OSError as error:
            raise CannotStart(
                f"AGENTOPS_DATA={root} cannot be written ({error.strerror}): "
                "choose a folder of your own with `make up AGENTOPS_DATA=/path/to/folder`."
            ) from error

    def lock(self, url: str) -> None:
        """Holds the folder until this process ends, however it ends: the kernel lets go of the lock."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "it is still starting"
            raise CannotStart(
                f"{self.root} is in use by a running copy ({holder}): use that one, stop it with Ctrl-C, "
                "or start another beside it with `make up PORT=8001 AGENTOPS_DATA=.agentops-8001`."
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"pid {os.getpid()}, {url}\n")
        self._lock.flush()

    def secret(self, name: str) -> str:
        path = self._secrets / name
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32))
        return path.read_text()

    def ports(self, *names: str, avoid: int) -> dict[str, int]:
        """The ports of the last start where they are still free, so that bookmarks and clients go on working."""
        kept = self._read("ports.json")
        chosen: dict[str, int] = {}
        for name in names:
            taken = {avoid, *chosen.values()}
            port = kept.get(name)
            if not isinstance(port, int) or port in taken or not ports.is_free(port):
                port = ports.find_free(taken)
            chosen[name] = port
        self._write("ports.json", chosen)
        return chosen

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def open_log(self, name: str) -> Path:
        """Puts a log aside that has grown too long; only while nobody writes to it."""
        path = self.log(name)
        if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
        path.touch()
        return path

    def note_start(self, name: str, pid: int, lease_owner: str | None = None) -> None:
        self._write(
            "children.json",
            self._read("children.json") | {name: asdict(Started(pid, born(pid), lease_owner))},
        )
        self._replace(self._pids / f"{name}.pid", f"{pid}\n")

    def note_end(self, name: str, *, owes_leases: bool = False) -> None:
        """owes_leases: it went without handing them back, which the next start has to see."""
        (self._pids / f"{name}.pid").unlink(missing_ok=True)
        if owes_leases:
            return
        self._write(
            "children.json", {key: row for key, row in self._read("children.json").items() if key != name}
        )

    def noted(self) -> dict[str, Started]:
        """The children that the last supervisor did not see the end of."""
        return {name: Started(**row) for name, row in self._read("children.json").items()}

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.root / name).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        self._replace(self.root / name, json.dumps(content, indent=2) + "\n")

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        draft = path.with_name(path.name + ".new")
        draft.write_text(text)
        draft.replace(path)
