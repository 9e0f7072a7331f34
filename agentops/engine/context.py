"""What a tool is given: the SDK's context over the journal, the ledger of operations and the run's events."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from agentops.kernel import canonical
from agentops.kernel.redaction import mask, printable
from agentops.sdk.context import BoundLogger, Principal, StepContext
from agentops.sdk.errors import DuplicateStep, JournalMismatch, Terminal
from agentops.sdk.values import Receipt
from agentops.telemetry.logs import logger
from agentops.tenancy import identity
from runs.events import Event

from .ledger import NewStep
from .live import LeaseLost, LiveRun, Waiting
from .settle import settle

log = logger("agentops.tool")

type Write = Callable[[Sequence[NewStep], Sequence[Event]], None]


class _StepContext:
    def __init__(self, step_id: str) -> None:
        self.id = step_id


class CallSignal:
    """Set once the run is cancelled or the call's time is up; an abandoned call writes and proposes nothing more."""

    def __init__(self, run: threading.Event) -> None:
        self._run = run
        self._abandoned = threading.Event()

    def is_set(self) -> bool:
        return self._run.is_set() or self._abandoned.is_set()

    def abandon(self) -> None:
        self._abandoned.set()

    def require_time(self) -> None:
        if self._abandoned.is_set():
            raise LeaseLost


class CallContext:
    """One call of a tool in one life of its run; lives in the tool's thread."""

    def __init__(
        self, live: LiveRun, key: str, proposes: Sequence[str], signal: CallSignal, write: Write
    ) -> None:
        self._live = live
        self._key = key
        self._proposes = proposes
        self._write = write
        self._names: set[str] = set()
        self.signal = signal
        self.call_id = f"{live.public_id}/{key}"
        self.run_id = live.public_id
        self.principal = Principal(live.tenant, live.actor)
        self.log: BoundLogger = log

    def step[*Ts, R](
        self, name: str, fn: Callable[[StepContext, *Ts], R], *args: *Ts, key: str | None = None
    ) -> R:
        place = self._place(key or name)
        digest = canonical.digest("step", [name, *args])
        recorded = self._live.steps.get(place)
        if recorded is not None:
            if recorded["digest"] != digest:
                raise JournalMismatch(f"Step {place} was recorded with other arguments.")
            result: R = recorded["result"]
            return result
        began = time.monotonic()
        value = fn(_StepContext(f"{self.run_id}/{place}"), *args)
        record = {"digest": digest, "result": canonical.canonical(value)}
        took = time.monotonic() - began
        self._write([NewStep(place, "step", name, record, input_digest=digest[:80], took_seconds=took)], [])
        return value

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        if action not in self._proposes:
            raise Terminal(f"This tool does not declare that it proposes {action}.", code="undeclared_action")
        place = self._place(key or action)
        fence = self.signal.require_time
        return settle(self._live, place, action, fence, target=target, params=params, reference=reference)

    def progress(self, text: str) -> None:
        said = {"call_id": self._key, "text": mask(printable(text, 500))}
        self._write([], [Event("tool.progress", said)])

    def sleep(self, seconds: float) -> None:
        place = self._place(f"sleep-{len(self._names)}")
        until = self._live.steps.get(place)
        if until is None:
            until = {
                "until": time.time() + seconds
            }  # only how long is left counts; PostgreSQL's clock wakes the run
            self._write([NewStep(place, "step", "sleep", until)], [])
        left = until["until"] - time.time()
        if left > 0:
            raise Waiting("timer", until=left)

    def identity_headers(self, audience: str, target: str | None = None) -> dict[str, str]:
        token = identity.sign(
            audience=audience,
            tenant=self._live.tenant,
            subject=self._live.actor,
            agent=self._live.agent.name,
            scope="read",
            run_id=self._live.id,
            target=target,
        )
        return {identity.HEADER: token}

    def _place(self, name: str) -> str:
        if name in self._names:
            raise DuplicateStep(f"{name!r} stands twice in {self._key}; pass key= in a loop.")
        self._names.add(name)
        return f"{self._key}/{name}"
