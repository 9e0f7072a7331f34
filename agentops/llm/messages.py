"""Between our journal and Pydantic AI's messages: building a history, reading an answer, one rule for odd text.

Prose that PostgreSQL cannot keep is repaired (see `agentops.sdk.text`). Arguments stay as the model wrote them, as JSON
text in which such characters are escaped, so that `Tool.bind` sees them and refuses.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentops.llm.turns import CallResult, ToolCall
from agentops.sdk import Message
from agentops.sdk.text import repaired, repaired_json
from agentops.sdk.tools import Tool

FORMAT = f"pydantic-ai {version('pydantic-ai-slim')}"
NO_RESULT = CallResult(
    {"error": {"code": "interrupted", "message": "This call was stopped; it may or may not have happened."}},
    ok=False,
)
MAX_TOOL_NAME_CHARS = 128

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def load() -> None:
    """Build the validators now: the library puts it off until the first message, and it takes most of a second."""
    ModelMessagesTypeAdapter.rebuild()


def history(
    input_text: str,
    turns: Iterable[tuple[dict[str, Any], Sequence[CallResult]]],
    earlier: Iterable[tuple[str, str]] = (),
) -> list[ModelMessage]:
    """A conversation from the journal: the customer's words, then each turn's response and its calls' results.

    A call without a result (its turn was cut short) is answered as interrupted: providers refuse a call left open.
    """
    messages: list[ModelMessage] = []
    for asked, answered in earlier:
        messages.append(ModelRequest([UserPromptPart(repaired(asked))]))
        messages.append(ModelResponse([TextPart(repaired(answered))]))
    messages.append(ModelRequest([UserPromptPart(repaired(input_text))]))
    for stored, results in turns:
        response = _load(stored)
        messages.append(response)
        if response.tool_calls:
            messages.append(_results(response.tool_calls, results))
    return messages


def store(response: ModelResponse) -> dict[str, Any]:
    """One response as JSON, with the library that can read it."""
    message = ModelMessagesTypeAdapter.dump_python([_storable(response)], mode="json")[0]
    return {"format": FORMAT, "message": repaired_json(message)}


def calls_of(response: ModelResponse) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(part.tool_name, _args_text(part), part.tool_call_id)
        for part in _storable(response).parts
        if isinstance(part, ToolCallPart)
    )


def with_instructions(messages: Sequence[ModelMessage], instructions: str) -> list[ModelMessage]:
    """The instructions ride on the last request, where the library looks for them; a history has none of its own."""
    *before, last = messages
    if not isinstance(last, ModelRequest):
        raise ValueError("A history must end with the customer's words or with results.")
    return [*before, dataclasses.replace(last, instructions=instructions)]


def request_chars(conversation: Sequence[ModelMessage], tools: Sequence[Tool]) -> int:
    """An upper bound for the characters that a provider reads: our JSON of them, in bytes."""
    offered = [(tool.name, tool.description, tool.input_schema) for tool in tools]
    return len(ModelMessagesTypeAdapter.dump_json(list(conversation))) + len(json.dumps(offered))


def without_marks(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """For a provider that has no mark for a failed call: our `{"error": …}` says it, and the library wraps it no more."""
    return [
        dataclasses.replace(message, parts=[_unmarked(part) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def neutral(messages: Sequence[ModelMessage]) -> list[Message]:
    """The same conversation in the SDK's own words, for a scripted model."""
    told: list[Message] = []
    args: dict[str, dict[str, Any]] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            args |= {part.tool_call_id: part.args_as_dict() for part in message.tool_calls}
            told.append(Message("assistant", message.text or ""))
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                told.append(Message("user", str(part.content)))
            elif isinstance(part, ToolReturnPart):
                told.append(
                    Message(
                        "tool",
                        tool=part.tool_name,
                        args=args.get(part.tool_call_id, {}),
                        result=part.content,
                        ok=part.outcome == "success",
                    )
                )
    return told


def _load(stored: dict[str, Any]) -> ModelResponse:
    message = ModelMessagesTypeAdapter.validate_python([stored["message"]])[0]
    if not isinstance(message, ModelResponse):
        raise ValueError(f"A recorded turn of {stored['format']} is no model response.")
    return message


def _unmarked(part: ModelRequestPart) -> ModelRequestPart:
    return dataclasses.replace(part, outcome="success") if isinstance(part, ToolReturnPart) else part


def _results(calls: Sequence[ToolCallPart], results: Sequence[CallResult]) -> ModelRequest:
    padded = [*results, *[NO_RESULT] * (len(calls) - len(results))]
    return ModelRequest(
        [
            ToolReturnPart(
                tool_name=call.tool_name,
                content=repaired_json(result.result),
                tool_call_id=call.tool_call_id,
                outcome="success" if result.ok else "failed",
            )
            for call, result in zip(calls, padded, strict=True)
        ]
    )


def _storable(response: ModelResponse) -> ModelResponse:
    return dataclasses.replace(response, parts=[_storable_part(part) for part in response.parts])


def _storable_part(part: Any) -> Any:
    match part:
        case TextPart() | ThinkingPart():
            return dataclasses.replace(part, content=repaired(part.content))
        case ToolCallPart():
            return dataclasses.replace(
                part,
                tool_name=repaired(part.tool_name)[:MAX_TOOL_NAME_CHARS],
                args=_args_text(part),
                tool_call_id=repaired(part.tool_call_id),
            )
        case _:
            return part


def _args_text(part: ToolCallPart) -> str:
    text = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
    return _UNSTORABLE.sub(lambda odd: f"\\u{ord(odd.group()):04x}", text)
