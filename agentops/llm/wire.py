"""One turn on the wire: streamed, bounded, read to its end, and every failure told as retryable or terminal."""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Sequence

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from agentops.llm.clients import model_for, request_settings
from agentops.llm.errors import ModelError, ModelRetryable, ModelTerminal
from agentops.llm.failures import classified
from agentops.llm.messages import (
    calls_of,
    request_chars,
    store,
    with_instructions,
    without_marks,
)
from agentops.llm.prices import Tokens, cost_microusd
from agentops.llm.routes import OFFLINE
from agentops.llm.turns import OnDelta, TurnResult, TurnSettings
from agentops.sdk.agents import OfflineScript
from agentops.sdk.text import repaired
from agentops.sdk.tools import Tool

PARAGRAPH = "\n\n"
MAX_ANSWER_CHARS = 200_000
MAX_CALLS = 100  # of one turn


async def turn(
    model: str,
    *,
    instructions: str,
    history: Sequence[ModelMessage],
    tools: Sequence[Tool],
    offline: OfflineScript | None,
    settings: TurnSettings,
    on_delta: OnDelta,
) -> TurnResult:
    conversation = with_instructions(history, instructions)
    answer = _answer(
        model,
        model_for(model, offline, settings),
        without_marks(conversation) if model.startswith("openai") else conversation,
        request_settings(model, settings),
        ModelRequestParameters(function_tools=[_offered(tool) for tool in tools]),
    )
    text = ""
    async with contextlib.aclosing(answer):
        async for piece in answer:
            if isinstance(piece, ModelResponse):
                response = _whole(model, piece)
                tokens = _tokens(model, response, conversation, tools)
                return _result(model, response, repaired(text), tokens, settings)
            text += piece
            _bounded(model, len(text))
            told = on_delta(repaired(piece))
            if inspect.isawaitable(told):
                await told
    raise ModelRetryable(f"The answer of {model} broke off.", code="answer_broke_off")


async def _answer(
    name: str,
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
) -> AsyncGenerator[str | ModelResponse]:
    """The answer's text piece by piece, then the whole response. Failures of the library's leave as ours."""
    try:
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream:
            spoken, last_was_text = False, False
            async for event in stream:
                if isinstance(event, PartStartEvent):
                    is_text = isinstance(event.part, TextPart)
                    if is_text and spoken and not last_was_text:
                        yield PARAGRAPH
                    last_was_text = is_text
                if piece := _text(event):
                    spoken = True
                    yield piece
            yield stream.get()
    except ModelError:
        raise
    # `from None` in each: the library's own message quotes the provider's answer, which may quote the prompt.
    except AgentRunError as error:
        raise classified(name, error) from None
    except (httpx2.TransportError, httpx2.StreamError, OSError) as error:
        raise ModelRetryable(
            f"The connection to {name} broke ({type(error).__name__}).", code="connection_broke"
        ) from None
    except Exception as error:
        raise ModelTerminal(
            f"The answer of {name} cannot be read ({type(error).__name__}).", code="unreadable_answer"
        ) from None


def _text(event: ModelResponseStreamEvent) -> str:
    """The first piece of a part comes with its start, the others as deltas."""
    match event:
        case PartStartEvent(part=TextPart(content=piece)):
            return piece
        case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
            return piece
        case _:
            return ""


def _whole(name: str, response: ModelResponse) -> ModelResponse:
    """The response, if it is one: complete, not refused, and with something in it."""
    if response.finish_reason == "content_filter":
        raise ModelTerminal(f"{name} declined to answer this conversation.", code="model_refused")
    # A stream may end without a word; only the provider's own reason for stopping says that this was all.
    ended = name == OFFLINE or response.finish_reason is not None
    if not ended or response.state != "complete" or response.finish_reason == "error":
        raise ModelRetryable(f"The answer of {name} broke off.", code="answer_broke_off")
    if not response.text and not response.tool_calls:
        raise ModelRetryable(f"{name} gave an empty answer.", code="empty_answer")
    if len(response.tool_calls) > MAX_CALLS:
        raise ModelTerminal(f"{name} asked for more than {MAX_CALLS} calls at once.", code="too_many_calls")
    _bounded(name, sum(len(call.args_as_json_str()) for call in response.tool_calls))
    return response


def _bounded(name: str, chars: int) -> None:
    if chars > MAX_ANSWER_CHARS:
        raise ModelTerminal(
            f"The answer of {name} is longer than {MAX_ANSWER_CHARS} characters.", code="too_long"
        )


def _tokens(
    name: str, response: ModelResponse, conversation: Sequence[ModelMessage], tools: Sequence[Tool]
) -> Tokens:
    """As the provider counted; where it did not (some compatible servers), at most what it can have been."""
    usage = response.usage
    if name == OFFLINE:  # nobody is billed for what the library guesses here
        return Tokens(0, 0)
    if not usage.has_values():
        return Tokens(request_chars(conversation, tools), request_chars([response], ()))
    return Tokens(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


def _result(
    name: str, response: ModelResponse, text: str, tokens: Tokens, settings: TurnSettings
) -> TurnResult:
    return TurnResult(
        response=store(response),
        text=text,
        calls=calls_of(response),
        model=name,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cost_microusd=cost_microusd(name, tokens, settings.prices, reported_name=response.model_name),
        finish_reason=response.finish_reason,
    )


def _offered(tool: Tool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=tool.input_schema
    )
