"""A tool's context in memory: a journal that outlives each life of the process, a clock that is stepped, points to die at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from agentops.sdk.agents import Agent
from agentops.sdk.context import BoundLogger, Principal, Signal, StepContext, require_name
from agentops.sdk.errors import (
    ChildFailed,
    DuplicateStep,
    JournalMismatch,
    OperationRefused,
    OutcomeUnknown,
    Terminal,
)
from agentops.sdk.signals import StopSignal
from agentops.sdk.tools import Tool, digest_of, kept, require_repeatable
from agentops.sdk.values import ChildRun, Receipt

Moment = Literal["before", "during", "after"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One call of `ctx.operation`, as the tool made it."""

    action: str
    target: str
    params: dict[str, Any]
    reference: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """One call of `ctx.run`, as the tool made it."""

    agent: str
    input: str
    budget_cents: int | None
    detached: bool
    key: str | None


class Waits(BaseException):  # not an Exception: a tool that catches everything must not swallow it
    """The call waits for this (`approval`, `operation`, `child`, `timer`), and is made again when that has moved."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Died(BaseException):
    """The process died at a point that the test named."""


Outcome = Callable[[Proposal], Receipt]
Answer = Callable[[Started], ChildRun]


def succeed(proposal: Proposal) -> Receipt:
    """The ordinary outcome: it happened, for the amount proposed."""
    return Receipt(
        operation_id=f"op_{proposal.reference}",
        action=proposal.action,
        target=proposal.target,
        status="succeeded",
        provider_ref=f"ref_{proposal.reference}",
        amount_minor=proposal.params.get("amount_minor"),
        currency=proposal.params.get("currency"),
    )


def undecided(proposal: Proposal) -> Receipt:
    """Nobody has decided yet: the run waits. Set another `outcome` and rehearse again."""
    raise Waits("approval")


def answered(child: Started) -> ChildRun:
    """The ordinary answer of a run that was started: its input again."""
    text = "" if child.detached else f"{child.agent}: {child.input}"
    return ChildRun(run_id=f"run_{child.agent}", agent=child.agent, text=text)


@dataclass
class Clock:
    """Seconds since the rehearsal began; they pass only when told to."""

    now: float = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class _Step:
    id: str


class _Silent:
    def bind(self, **fields: Any) -> BoundLogger:
        return self

    def debug(self, event: str, **fields: Any) -> None: ...
    def info(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...


@dataclass
class Rehearsal:
    """What a tool is given. What it has completed is kept when the process dies, and answers when it is called again.

    After `rehearse`, `status` is completed, failed (`error_code` says why) or waiting (`blocked_on` says for what); `turns`
    counts what the model was asked, `lives` how often the process began.
    """

    outcome: Outcome = succeed
    answer: Answer = answered
    principal: Principal = field(default_factory=lambda: Principal(tenant="acme", actor="user:rehearsal"))
    run_id: str = "run_rehearsal"
    call_id: str = "turn-1/call-0"
    signal: Signal = field(default_factory=StopSignal)
    log: BoundLogger = field(default_factory=_Silent)
    clock: Clock = field(default_factory=Clock)
    proposals: list[Proposal] = field(default_factory=list)
    children: list[Started] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    status: str = "queued"
    error_code: str = ""
    blocked_on: frozenset[str] = frozenset()
    lives: int = 0
    turns: int = 0
    journal: dict[str, Any] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # calls that a life has begun
    _seen: set[str] = field(default_factory=set)
    _deaths: list[tuple[Moment, str]] = field(default_factory=list)
    _tool: Tool | None = None

    # --- what a test says -------------------------------------------------------------------------------------------
    def die(self, *, before: str = "", during: str = "", after: str = "") -> None:
        """Let the process die once: before a piece of work begins, when it is done and not yet recorded, or once it is.

        Work is named by its place ("turn-2", "turn-1/call-0", "turn-1/call-0/order") or by its last part: a step, an action,
        a key.
        """
        named: dict[Moment, str] = {"before": before, "during": during, "after": after}
        self._deaths += [(moment, name) for moment, name in named.items() if name]

    def begin(self, call_id: str, tool: Tool | None = None) -> None:
        """A new life of this call: names may be used again, completed steps answer."""
        self.call_id = call_id
        self._tool = tool
        self._seen.clear()

    def once[R](self, place: str, work: Callable[[], R]) -> R:
        """`work()`, done once and recorded at `place` of the journal."""
        if place not in self.journal:
            with self._dying(place):
                value = work()
                self._pass("during", place)
                self.journal[place] = value
        result: R = self.journal[place]
        return result

    # --- what a tool says -------------------------------------------------------------------------------------------
    def step[*Ts, R](
        self, name: str, fn: Callable[[StepContext, *Ts], R], *args: *Ts, key: str | None = None
    ) -> R:
        place = self._place(key or name)
        digest = digest_of([repr(arg) for arg in args])

        def work() -> tuple[str, Any]:
            value = to_jsonable_python(fn(_Step(f"{self.run_id}/{place}"), *args))
            return digest, kept(f"The result of step {name}", value)

        recorded, result = self.once(place, work)
        if recorded != digest:
            raise JournalMismatch(f"Step {place} was recorded with other arguments.")
        return result  # type: ignore[no-any-return]

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        if self._tool is not None and action not in self._tool.proposes:
            raise Terminal(f"This tool does not declare that it proposes {action}.", code="undeclared_action")
        place = self._place(key or action)
        proposal = Proposal(action, target, params, reference, key)
        self._begun(self.proposals, place, proposal)
        return self._ended(place, lambda: self.outcome(proposal))

    def run(
        self,
        agent: Agent | str,
        input: str,
        *,
        budget_cents: int | None = None,
        detached: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        if self._tool is not None:
            require_repeatable(self._tool, "repeatable", "proposes")
        name = agent if isinstance(agent, str) else agent.name
        place = self._place(key or f"run-{name}")
        child = Started(name, input, budget_cents, detached, key)
        self._begun(self.children, place, child)
        return self._ended(place, lambda: self.answer(child))

    def progress(self, text: str) -> None:
        self.lines.append(text)

    def sleep(self, seconds: float) -> None:
        if self._tool is not None:
            require_repeatable(self._tool, "reads", "repeatable", "proposes")
        place = self._place(
            f"sleep-{1 + sum(name.rpartition('/')[2].startswith('sleep-') for name in self._seen)}"
        )
        until = self.once(place, lambda: self.clock.now + seconds)
        if self.clock.now < until:
            raise Waits("timer")

    def identity_headers(self, audience: str, target: str | None = None) -> dict[str, str]:
        return {"Txn-Token": f"rehearsal {audience} {target or ''}".strip()}

    # --- how it is kept ---------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """Another run begins: nothing of the journal is its own. What was proposed and started stays in the books."""
        self.journal.clear()
        self.begun.clear()

    def _place(self, name: str) -> str:
        require_name(name)
        place = f"{self.call_id}/{name}"
        if place in self._seen:
            raise DuplicateStep(f"{place} was done already in this call: give key= inside a loop.")
        self._seen.add(place)
        return place

    def _begun[Row](self, rows: list[Row], place: str, row: Row) -> None:
        """Enter `row` into the books, once for its place: a later life continues what is there, and asks for nothing else."""
        at = f"{place}#"
        if at not in self.journal:
            self._pass("before", place)
            self.journal[at] = row
            rows.append(row)
        elif self.journal[at] != row:
            raise JournalMismatch(f"{place} was recorded with other arguments.")

    def _ended[R](self, place: str, work: Callable[[], R]) -> R:
        """The end of an operation or a run, which is the same in every life: a value, or the error that it ended with."""

        def ended() -> R | OperationRefused | OutcomeUnknown | ChildFailed:
            try:
                return work()
            except (OperationRefused, OutcomeUnknown, ChildFailed) as error:
                return error

        if place not in self.journal:
            self.journal[place] = ended()
            self._pass("during", place)
            self._pass("after", place)
        result = self.journal[place]
        if isinstance(result, Exception):
            raise result
        value: R = result
        return value

    @contextmanager
    def _dying(self, place: str) -> Iterator[None]:
        self._pass("before", place)
        yield
        self._pass("after", place)

    def _pass(self, moment: Moment, place: str) -> None:
        for death in self._deaths:
            if death[0] == moment and death[1] in (place, place.rpartition("/")[2]):
                self._deaths.remove(death)
                raise Died(f"{moment} {place}")
