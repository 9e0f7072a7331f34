"""Children that end with their parent, and how to tell a process from a later one with the same number."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_PR_SET_PDEATHSIG = 1
_HAS_PROC = Path("/proc/self/stat").exists()  # Linux; macOS has ps
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


# What a server is started with: no PGDATA, PGPORT or PGOPTIONS of the person's shell.
SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


class Account(NamedTuple):
    uid: int
    gid: int


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log: Path,
    dies_with_us: signal.Signals = signal.SIGTERM,
    account: Account | None = None,
    cwd: Path = ROOT,
) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, so that the terminal's Ctrl-C reaches only the supervisor.

    dies_with_us is what the kernel sends it when the supervisor is killed (Linux; elsewhere the next start finds it).
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The kernel forgets the death signal at a change of user; Popen changes the user before this hook.
            preexec_fn=_tie(os.getpid(), dies_with_us),
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=[] if account else None,
        )


def run(
    argv: Sequence[str | Path], *, account: Account | None, text: str = "", output: IO[bytes] | None = None
) -> int:
    """Runs a server's own tool to its end, out of the reach of the terminal's Ctrl-C; returns its exit code."""
    return subprocess.run(
        [str(word) for word in argv],
        env=SERVER_ENVIRONMENT,
        cwd="/",
        input=text.encode(),
        stdout=output or subprocess.DEVNULL,
        stderr=output or subprocess.DEVNULL,
        start_new_session=True,
        check=False,
        user=account and account.uid,
        group=account and account.gid,
        extra_groups=[] if account else None,
    ).returncode


def _tie(parent: int, dies_with_us: signal.Signals) -> Callable[[], None] | None:
    libc = _libc
    if libc is None:
        return None

    def in_the_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(dies_with_us), 0, 0, 0)
        if os.getppid() != parent:  # it was killed between our fork and the line above
            os.kill(os.getpid(), signal.SIGKILL)

    return in_the_child


def born(pid: int) -> str | None:
    """When that process started, as the system words it; None when it has ended (a zombie has ended too)."""
    if _HAS_PROC:
        try:
            # Field 2 is the program's name in brackets and may hold spaces: count from behind it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    shown = subprocess.run(
        ["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    when, _, state = shown.stdout.strip().rpartition(" ")
    return None if not when or state.startswith("Z") else when.strip()


def end_group(pid: int) -> None:
    """Whatever a dead leader's own children are still doing, it ends now."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
