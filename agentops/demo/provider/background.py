"""Work that is due at a time: sleeps until then, or until it is nudged."""

import sys
import threading
import traceback
from collections.abc import Callable

PAUSE_AFTER_FAULT_SECONDS = 1.0


class Background:
    def __init__(self, name: str, work: Callable[[], float | None]) -> None:
        """`work` does what is due and returns the seconds until more will be, or None for: when nudged."""
        self._work = work
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        self._nudged.set()

    def _loop(self) -> None:
        while True:
            self._nudged.clear()  # before the work: a nudge during it means another round
            try:
                pause = self._work()
            except Exception:
                traceback.print_exc(file=sys.stderr)
                pause = PAUSE_AFTER_FAULT_SECONDS
            self._nudged.wait(pause)
