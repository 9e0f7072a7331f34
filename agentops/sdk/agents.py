"""An agent is a prompt, tools and limits under a name; making one registers it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentops.sdk.errors import AgentDefinitionError
from agentops.sdk.tools import Tool, digest_of

_AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{1,39}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use; meeting a limit is an ordinary, explained end."""

    steps: int = 20
    budget_cents: int = 50
    deadline_seconds: int = 7 * 24 * 3600  # people may take their time
    at_once: int | None = (
        None  # runs of this agent that work at the same time for one tenant; None: no limit of its own
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A scripted model's request for one tool."""

    tool: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of a scripted model: words, calls, or both. Without calls it is the answer."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One line of a conversation as a scripted model reads it.

    A `tool` message has the call's `tool` and `args` and its `result`; `ok` is false where that is an error.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    tool: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    ok: bool = True


OfflineScript = Callable[[Sequence[Message]], Reply]


@dataclass(frozen=True, slots=True)
class Agent:
    """`model=None` takes the installation's; `offline` is the script that stands in for one in demo and tests.

    With `refusal_ends` an operation that ended without effect, and whose tool does not catch that, ends the run with a reason
    of its own (`policy`, `rejected`, `expired`); else the model is told, and answers in its own words. One that is `built_in`
    is started by the product itself, never by its name.
    """

    name: str
    instructions: str
    tools: Sequence[Tool]
    limits: Limits = Limits()
    model: str | None = None
    offline: OfflineScript | None = None
    description: str = ""
    refusal_ends: bool = False
    built_in: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "tools", tuple(self.tools))
        definition = {
            "name": self.name,
            "description": self.description,
            "instructions": self.instructions,
            "tools": [tool.digest for tool in self.tools],
            "limits": asdict(self.limits),
            "model": self.model,
            "refusal_ends": self.refusal_ends,
        }
        object.__setattr__(self, "digest", digest_of(definition))
        register(self)

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


_registered: dict[str, Agent] = {}


def register(agent: Agent) -> None:
    """Make an agent known under its name; the same definition twice is no mistake."""
    known = _registered.get(agent.name)
    if known is not None and known.digest != agent.digest:
        raise AgentDefinitionError(
            f"Agent {agent.name} is defined twice and differently: rename one of them."
        )
    _registered[agent.name] = agent


def agents() -> tuple[Agent, ...]:
    """All registered agents that can be started by name, in the order of their names."""
    return tuple(_registered[name] for name in sorted(_registered) if not _registered[name].built_in)


def agent(name: str) -> Agent | None:
    """The agent that carries on runs of that name, a built-in one too."""
    return _registered.get(name)


def offered(name: str) -> Agent | None:
    """The agent of that name, where anybody may start it."""
    found = _registered.get(name)
    return None if found is None or found.built_in else found


@contextmanager
def separate_registry() -> Iterator[None]:
    """Agents made inside are forgotten afterwards: for tests that define their own."""
    before = dict(_registered)
    try:
        yield
    finally:
        _registered.clear()
        _registered.update(before)


def _check(agent: Agent) -> None:
    if not _AGENT_NAME.fullmatch(agent.name):
        raise AgentDefinitionError(
            f"Agent {agent.name!r}: use a name of 2 to 40 lower-case letters, digits and hyphens."
        )
    if not agent.instructions.strip():
        raise AgentDefinitionError(f"Agent {agent.name} has no instructions: write what it is for.")
    names = [tool.name for tool in agent.tools]
    if len(set(names)) < len(names):
        raise AgentDefinitionError(f"Agent {agent.name} has two tools of one name: rename one with name=.")
    if min(limit for limit in asdict(agent.limits).values() if limit is not None) <= 0:
        raise AgentDefinitionError(f"Agent {agent.name} has a limit of zero or less: raise it.")
