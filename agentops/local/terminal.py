"""What a person at the terminal reads: stages with their seconds, the children's lines, and refusals of one sentence."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class CannotStart(Exception):
    """Says in one sentence what is wrong and what to do next; it is shown without a traceback."""


def say(line: str) -> None:
    # A terminal that was closed must not stop the supervisor half-way through its order of stopping.
    with suppress(OSError, ValueError):
        print(line, flush=True)


@contextmanager
def stage(name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    say(f"  {name:<28} {time.monotonic() - begun:5.1f} s")


class Tail:
    """Shows what a child appends to its log file.

    Children write to files of their own, not to pipes: they never wait for a terminal that was paused, and
    they do not break when the supervisor is killed.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._prefix = f"{name} | "
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""

    def pump(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            say(self._prefix + line.decode(errors="replace"))


def last_lines(path: Path, count: int = 15) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join("    " + line for line in lines[-count:])
