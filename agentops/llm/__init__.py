"""The only door to models: one turn in, one answer out, whichever provider stands behind it.

Importing this costs nothing: the libraries behind `turn` and `history` take seconds to load, and the web process never
needs them. A worker calls `warm_up` on a thread at its start, so that no turn waits for it on the event loop.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agentops.llm.errors import ModelError, ModelRetryable, ModelTerminal, ModelUnavailable
from agentops.llm.prices import parse_prices, worst_cost_microusd
from agentops.llm.routes import OFFLINE, check_model
from agentops.llm.turns import CallResult, OnDelta, ToolCall, TurnResult, TurnSettings
from agentops.sdk.agents import OfflineScript
from agentops.sdk.tools import Tool

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = [
    "OFFLINE",
    "CallResult",
    "ModelError",
    "ModelRetryable",
    "ModelTerminal",
    "ModelUnavailable",
    "OnDelta",
    "ToolCall",
    "TurnResult",
    "TurnSettings",
    "check_model",
    "history",
    "input_chars",
    "parse_prices",
    "turn",
    "warm_up",
    "worst_cost_microusd",
]


def warm_up(*models: str) -> None:
    """Load what these models need; blocks for seconds, so not on the event loop. No key is needed."""
    from agentops.llm import clients, messages, prices, wire  # noqa: F401

    messages.load()
    prices.load()
    for model in models:
        clients.load(model)


def history(
    input_text: str,
    turns: Iterable[tuple[dict[str, Any], Sequence[CallResult]]] = (),
    earlier: Iterable[tuple[str, str]] = (),
) -> "list[ModelMessage]":
    """A conversation for `turn`: the customer's words, then each journaled response with its calls' results.

    `earlier` are the requests before this one, each with its answer.
    """
    from agentops.llm import messages

    return messages.history(input_text, turns, earlier)


def input_chars(instructions: str, history: "Sequence[ModelMessage]", tools: Sequence[Tool]) -> int:
    """What a turn would send, for `worst_cost_microusd`."""
    from agentops.llm import messages

    return messages.request_chars(messages.with_instructions(history, instructions), tools)


async def turn(
    model: str,
    *,
    instructions: str,
    history: "Sequence[ModelMessage]",
    tools: Sequence[Tool],
    offline: OfflineScript | None,
    settings: TurnSettings,
    on_delta: OnDelta,
) -> TurnResult:
    """Ask once. `on_delta` gets the text in pieces, in order; awaited if it returns an awaitable.

    Raises `ModelRetryable`, `ModelTerminal` or `ModelUnavailable`; nothing is retried here.
    """
    from agentops.llm import wire

    return await wire.turn(
        model,
        instructions=instructions,
        history=history,
        tools=tools,
        offline=offline,
        settings=settings,
        on_delta=on_delta,
    )
