"""What a process measures, each thing once."""

import threading
from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values at most as large as each bound, with how many there were and their sum."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last one: larger than every bound
        self.total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


# From the cancel's commit to the signal in the process that held the run.
CANCEL_SECONDS = Histogram("agentops_cancel_reach_seconds", (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60))
