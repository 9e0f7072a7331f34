"""What a tool is given: the SDK's context over the journal, the ledger of operations and the run's events."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentops.kernel import canonical
from agentops.kernel.redaction import mask, printable
from agentops.sdk.agents import Agent
from agentops.sdk.context import BoundLogger, Principal, StepContext, require_name
from agentops.sdk.errors import DuplicateStep, InvalidResult, JournalMismatch, OutcomeUnknown, Terminal
from agentops.sdk.signals import StopSignal
from agentops.sdk.tools import Tool, kept, require_repeatable
from agentops.sdk.values import ChildRun, Receipt
from agentops.telemetry.logs import logger
from agentops.tenancy import identity
from runs.children import Child
from runs.events import Event

from . import children
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

    def __init__(self, run: StopSignal) -> None:
        self._run = run
        self._abandoned = StopSignal()

    def is_set(self) -> bool:
        return self._run.is_set() or self._abandoned.is_set()

    def abandon(self) -> None:
        self._abandoned.set()

    @contextmanager
    def aborting(self, abort: Callable[[], None]) -> Iterator[None]:
        with self._run.aborting(abort), self._abandoned.aborting(abort):
            yield

    def require_time(self) -> None:
        if self._abandoned.is_set():
            raise LeaseLost


def _as_json(name: str, value: Any) -> Any:
    try:
        return kept(f"The result of step {name}", to_jsonable_python(value))
    except PydanticSerializationError as error:
        raise InvalidResult(f"Step {name} returned something that is no JSON: {error}"[:300]) from None


class CallContext:
    """One call of a tool in one life of its run; lives in the tool's thread."""

    def __init__(self, live: LiveRun, key: str, tool: Tool, signal: CallSignal, write: Write) -> None:
        self._live = live
        self._key = key
        self._tool = tool
        self._write = write
        self._names: set[str] = set()
        self._sleeps = 0
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
        if recorded is None:
            began = time.monotonic()
            value = fn(_StepContext(f"{self.run_id}/{place}"), *args)
            recorded = {"digest": digest, "result": _as_json(name, value)}
            took = time.monotonic() - began
            asked = mask(canonical.canonical(list(args)))
            done = NewStep(place, "step", name, recorded, asked=asked, input_digest=digest, took_seconds=took)
            self._write([done], [])
        elif recorded["digest"] != digest:
            raise JournalMismatch(f"Step {place} was recorded with other arguments.")
        result: R = recorded["result"]  # the same in this life as in every later one
        return result

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        if action not in self._tool.proposes:
            raise Terminal(f"This tool does not declare that it proposes {action}.", code="undeclared_action")
        place = self._place(key or action)
        fence = self.signal.require_time
        told = self._live.steps.get(place, {}).get("unknown", "")
        given = {"target": target, "params": params, "reference": reference, "told_unknown": told}
        try:
            return settle(self._live, place, action, fence, **given)
        except OutcomeUnknown as unknown:
            if unknown.operation_id != told:  # whatever is found out later, every life of the call goes on so
                self._write([NewStep(place, "operation", action, {"unknown": unknown.operation_id})], [])
            raise

    def progress(self, text: str) -> None:
        said = {"call_id": self._key, "text": mask(printable(text, 500))}
        self._write([], [Event("tool.progress", said)])

    def run(
        self,
        agent: Agent | str,
        input: str,
        *,
        budget_cents: int | None = None,
        detached: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        require_repeatable(self._tool, "repeatable", "proposes")
        wanted = Child(agent if isinstance(agent, str) else agent.name, input, budget_cents, detached)
        place = self._place(key or f"run-{wanted.agent}")
        outcome = self._live.steps.get(place)
        if outcome is None:
            child = children.start(self._live, place, wanted, self.signal.require_time)
            if not detached:
                raise Waiting("child")
            outcome = children.begun(child)
            self._write([NewStep(place, "step", wanted.agent, outcome)], [])
        return children.answer(place, wanted, outcome)

    def sleep(self, seconds: float) -> None:
        require_repeatable(self._tool, "reads", "repeatable", "proposes")
        self._sleeps += 1
        place = self._place(f"sleep-{self._sleeps}")
        recorded = self._live.steps.get(place)
        if recorded is None:
            recorded = {"until": (self._live.now() + timedelta(seconds=seconds)).isoformat()}
            self._write([NewStep(place, "step", "sleep", recorded)], [])
        left = (datetime.fromisoformat(recorded["until"]) - self._live.now()).total_seconds()
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
        require_name(name)
        if name in self._names:
            raise DuplicateStep(f"{name!r} stands twice in {self._key}; pass key= in a loop.")
        self._names.add(name)
        return f"{self._key}/{name}"
