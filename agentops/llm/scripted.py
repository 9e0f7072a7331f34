"""The offline model: an agent's own script, spoken through the same streaming door as a real one."""

import json
import re
from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from agentops.llm.errors import ModelTerminal
from agentops.llm.messages import neutral
from agentops.llm.routes import OFFLINE
from agentops.sdk.agents import OfflineScript

_PIECES = re.compile(r"\S{1,16}\s*|\s+")


def scripted(script: OfflineScript) -> FunctionModel:
    async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        try:
            reply = script(neutral(messages))
        except Exception as error:
            raise ModelTerminal(
                f"The agent's offline script failed with {type(error).__name__}: correct the script.",
                code="offline_script_failed",
            ) from error
        if not reply.text and not reply.calls:
            raise ModelTerminal(
                "The agent's offline script said nothing: let it answer or call a tool.",
                code="offline_script_failed",
            )
        for piece in _PIECES.findall(reply.text):
            yield piece
        for index, call in enumerate(reply.calls):
            # The same id in every life of the run: the count of messages is the turn's place in the journal.
            call_id = f"offline-{len(messages)}-{index}"
            yield {index: DeltaToolCall(call.tool, json.dumps(call.args), tool_call_id=call_id)}

    return FunctionModel(stream_function=speak, model_name=OFFLINE)
