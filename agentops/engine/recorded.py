"""What a run has on record, and a tool's context that answers from it alone: nothing is written, proposed or sent."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Never

from agentops.kernel import canonical
from agentops.sdk.agents import Agent
from agentops.sdk.context import StepContext
from agentops.sdk.errors import JournalMismatch, OutcomeUnknown, Terminal
from agentops.sdk.signals import StopSignal
from agentops.sdk.tools import Tool
from agentops.sdk.values import ChildRun, Receipt
from agentops.tenancy import vault
from operations.models import Interest, Operation
from operations.services import intend, same_intent
from operations.states import FINAL
from runs.children import Child
from runs.models import AgentRun, Step
from runs.retries import line_of

from . import children
from .context import CallContext, CallSignal
from .live import LiveRun
from .loading import TRY, step_place
from .settle import bring


@dataclass(frozen=True)
class Record:
    """The journal of a run with those of the runs that it retries, and what stands for its operations."""

    run: AgentRun
    line: list[AgentRun]  # the newest first
    steps: dict[str, Any]  # results by key
    digests: dict[str, str]  # of what each turn was asked
    operations: dict[str, Operation]  # by place

    def below(self, key: str) -> set[str]:
        """Every place inside the call at `key`."""
        places = {*self.steps, *self.operations}
        return {place for place in places if place.startswith(f"{key}/") and not TRY.search(place)}


def record_of(run: AgentRun) -> Record:
    record = Record(run, line_of(run), {}, {}, {})
    for each in reversed(record.line):
        for step in Step.objects.filter(run_id=each.id):
            if step.sealed_result is not None and (each.id == run.id or not TRY.search(step.key)):
                place = step_place(each.id, step.key)
                record.steps[step.key] = vault.unseal(place, step.sealed_result)
                record.digests[step.key] = step.input_digest
        stands = Interest.objects.filter(run_id=each.id).select_related("operation__previous")
        record.operations.update((interest.step, interest.operation) for interest in stands)
    return record


class Off(BaseException):  # not an Exception: a tool that catches everything must not swallow it
    """The code asks at `place` for what is not on record there, or would reach outside."""

    def __init__(self, place: str, outcome: str, detail: str) -> None:
        super().__init__(place)
        self.place, self.outcome, self.detail = place, outcome, detail


class RecordedCall(CallContext):
    """One call of a tool, walked again: every step, operation, wait and child of it answers from the record, or is `Off`."""

    def __init__(self, live: LiveRun, key: str, tool: Tool, record: Record) -> None:
        super().__init__(live, key, tool, CallSignal(StopSignal()), _writes)
        self._record = record
        self.walked: list[str] = []

    def step[*Ts, R](
        self, name: str, fn: Callable[[StepContext, *Ts], R], *args: *Ts, key: str | None = None
    ) -> R:
        place = self._place(key or name)
        recorded = self._recorded(place)
        if recorded["digest"] != canonical.digest("step", [name, *args]):
            raise _other(place)
        self.walked.append(place)
        result: R = recorded["result"]
        return result

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        if action not in self._tool.proposes:
            raise Terminal(f"This tool does not declare that it proposes {action}.", code="undeclared_action")
        place = self._place(key or action)
        operation = self._record.operations.get(place)
        told = self._record.steps.get(place, {}).get("unknown", "")
        if operation is None or (operation.status not in FINAL and operation.public_id != told):
            raise _absent(place)
        try:
            same_intent(
                operation,
                intend(self._record.run, action, target=target, params=params, reference=reference),
            )
        except JournalMismatch:
            raise _other(place) from None
        self.walked.append(place)
        if operation.public_id == told:
            raise OutcomeUnknown(told)
        return bring(operation, "")  # an ended one is only told

    def run(
        self,
        agent: Agent | str,
        input: str,
        *,
        budget_cents: int | None = None,
        detached: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        wanted = Child(agent if isinstance(agent, str) else agent.name, input, budget_cents, detached)
        place = self._place(key or f"run-{wanted.agent}")
        recorded = self._recorded(place)
        self.walked.append(place)
        try:
            return children.answer(place, wanted, recorded)
        except JournalMismatch:
            raise _other(place) from None

    def sleep(self, seconds: float) -> None:
        self._sleeps += 1
        place = self._place(f"sleep-{self._sleeps}")
        self._recorded(place)
        self.walked.append(place)

    def progress(self, text: str) -> None:
        """Nobody watches."""

    def identity_headers(self, audience: str, target: str | None = None) -> dict[str, str]:
        return {}  # no request leaves with them

    def _recorded(self, place: str) -> Any:
        if place not in self._record.steps:
            raise _absent(place)
        return self._record.steps[place]


def _writes(*_: Any) -> Never:
    raise AssertionError("a recorded call writes nothing")


def _absent(place: str) -> Off:
    return Off(place, "missing", "The code asks for it, and it is not on record.")


def _other(place: str) -> Off:
    return Off(place, "differs", "The code asks for it with other arguments than are on record.")


_OUTWARD = frozenset(  # events of PEP 578
    (
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "_thread.start_new_thread",
        "_thread.start_joinable_thread",
    )
)
_here = threading.local()


@contextmanager
def shut_in(key: str) -> Iterator[None]:
    """Inside, this thread opens no connection, begins no process and no thread: it would be `Off` instead."""
    _watch()
    _here.key = key
    try:
        yield
    finally:
        _here.key = None


@functools.cache
def _watch() -> None:
    sys.addaudithook(_refuse)  # once for the process: such a hook cannot be taken away


def _refuse(event: str, _: Any) -> None:
    if event in _OUTWARD and getattr(_here, "key", None) is not None:
        raise Off(_here.key, "", "From the record: from some point on its code would reach outside.")
