"""What a tool is given: durable steps, operations, and who it acts for.

The engine implements these protocols. Code of a tool runs again from its start after a crash; what `step` and
`operation` have completed is then answered from the journal.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentops.sdk.errors import Terminal
from agentops.sdk.text import is_storable
from agentops.sdk.values import ChildRun, Receipt

if TYPE_CHECKING:
    from agentops.sdk.agents import Agent

MAX_NAME_CHARS = (
    160  # of a step, an operation or a run inside a call; its place in the journal stands before it
)
_TAKEN = re.compile(r"(.*/)?retry-\d+")  # where the engine keeps when a call is tried again


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a run acts for, and with which rights."""

    tenant: str
    actor: str
    scopes: frozenset[str] = frozenset()


class Signal(Protocol):
    """Set once the run is cancelled or the tool's time is up; a long tool looks at it and stops."""

    def is_set(self) -> bool: ...

    def aborting(self, abort: Callable[[], None]) -> AbstractContextManager[None]:
        """For a tool that blocks: inside, `abort()` is called once, from another thread, when the signal is set.

        `agentops.sdk.http.client` does it for HTTP.
        """
        ...


class BoundLogger(Protocol):
    """A structured logger that carries the run's ids already."""

    def bind(self, **fields: Any) -> "BoundLogger": ...
    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


class StepContext(Protocol):
    """Given to the body of a step, which runs at least once."""

    @property
    def id(self) -> str:
        """The same in every life of the run: pass it on as an idempotency key."""
        ...


class ToolContext(Protocol):
    """The first argument of every tool."""

    @property
    def call_id(self) -> str:
        """Stable across retries of this call, new for each new call."""
        ...

    @property
    def run_id(self) -> str: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def signal(self) -> Signal: ...
    @property
    def log(self) -> BoundLogger: ...

    def step[*Ts, R](
        self, name: str, fn: Callable[[StepContext, *Ts], R], *args: *Ts, key: str | None = None
    ) -> R:
        """Call `fn(step, *args)` once per run and keep its JSON result; loops pass `key`.

        Raises `DuplicateStep` for a name used twice in one life, `JournalMismatch` for other arguments than recorded, and
        `Terminal` (`step_name`) for a name or key that is too long.
        """
        ...

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        """Propose one change in somebody else's system and return its receipt once it has happened.

        `target` is `type:id`. `reference` is what makes two honest requests different (an order line, a ticket), never
        free text. `key` names the call where one tool proposes the same action more than once. While people decide or the
        provider works, the tool is unwound by a BaseException of the engine and called again later: catch `Exception`,
        never `BaseException`, around it. Raises `OperationRefused` if it ended surely without effect,
        `OutcomeUnknown` where that cannot be said and its action has a patience that is over.
        """
        ...

    def progress(self, text: str) -> None:
        """Show one line to whoever watches the run."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait without holding a thread; after a restart only for the rest.

        The tool is unwound and called again when the time has come, so what it did before stands in `step` or `operation`;
        one that declares no effect may not sleep.
        """
        ...

    def run(
        self,
        agent: "Agent | str",
        input: str,
        *,
        budget_cents: int | None = None,
        detached: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        """Start a run of another agent, once, and return its answer when it has one.

        It acts for the same actor, spends from this run's budget (at most `budget_cents`, else its agent's own limit) and
        ends with this run. With `detached` it is not waited for, takes its share of the budget for good, and goes on when
        this run ends. `key` names the call where one tool starts the same agent more than once. The tool is unwound while
        the child works, as with `operation`; only `repeatable` and proposing tools may start runs. Raises `ChildFailed`.
        """
        ...

    def identity_headers(self, audience: str, target: str | None = None) -> dict[str, str]:
        """A short-lived signed statement of whom this call acts for, as headers for a system that is read from."""
        ...


def require_name(name: str) -> None:
    """Raises Terminal, before anything is done, where no place in the journal can have that name."""
    if len(name) > MAX_NAME_CHARS or not is_storable(name) or _TAKEN.fullmatch(name):
        raise Terminal(
            f"A step's name has at most {MAX_NAME_CHARS} plain characters, and none is called retry-1: give another key=.",
            code="step_name",
        )
