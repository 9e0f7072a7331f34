"""The shapes at the door: what a turn is asked with, and what it answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentops.llm.prices import Price

OnDelta = Callable[[str], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """Bounds of one request; `silence_seconds` is the longest wait for the next byte."""

    max_output_tokens: int = 2048
    connect_seconds: float = 5
    silence_seconds: float = 60
    deadline_seconds: float = 180
    prices: Mapping[str, Price] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request for one tool. `args` is JSON text as the model wrote it, unchecked: `Tool.bind` judges it.

    `provider_id` is the provider's text, good for a trace only; a call is known by its place in the turn.
    """

    name: str
    args: str
    provider_id: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one call came to, in the order of the turn's calls; `ok=False` marks an error to the model."""

    result: Any
    ok: bool = True


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One answer. `response` is opaque JSON for the journal and goes back in through `history`."""

    response: dict[str, Any]
    text: str
    calls: tuple[ToolCall, ...]
    model: str
    input_tokens: int
    output_tokens: int
    cost_microusd: int
    finish_reason: str | None
