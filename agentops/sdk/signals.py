"""The signal that tells a tool to stop, and what is done for a tool that cannot look at it because it is blocked."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class StopSignal:
    """Set once, from any thread."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._aborts: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        return self._set.is_set()

    def set(self) -> None:
        with self._lock:
            self._set.set()
            aborts, self._aborts = self._aborts, []
        for abort in aborts:
            with suppress(Exception):  # one that cannot be ended keeps no other from it
                abort()

    @contextmanager
    def aborting(self, abort: Callable[[], None]) -> Iterator[None]:
        """Inside, `abort()` is called once, by whoever sets the signal; at once where it is set already."""
        with self._lock:
            now = self._set.is_set()
            if not now:
                self._aborts.append(abort)
        if now:
            abort()
        try:
            yield
        finally:
            with self._lock:
                if abort in self._aborts:
                    self._aborts.remove(abort)
