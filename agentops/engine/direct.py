"""`direct`, the built-in agent: its run proposes one operation that somebody named in full, and says what became of it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agentops.sdk import Agent, Call, Limits, Message, OutcomeUnknown, Receipt, Reply, ToolContext, tool

NAME = "direct"
INSTRUCTIONS = "Propose the one operation that you are given, as it stands."


def register(actions: Iterable[str]) -> Agent:
    """Make the agent known; it may propose any of `actions`."""

    @tool(proposes=tuple(sorted(actions)), expose=False)
    def propose(
        ctx: ToolContext, action: str, target: str, params: dict[str, Any], reference: str
    ) -> Receipt:
        """Propose one operation."""
        return ctx.operation(action, target=target, params=params, reference=reference)

    return Agent(
        NAME,
        INSTRUCTIONS,
        [propose],
        limits=Limits(steps=4),
        model="offline",
        offline=_say,
        refusal_ends=True,
        built_in=True,
    )


def asking(action: str, *, target: str, params: dict[str, Any], reference: str) -> str:
    """The input of a run that proposes this one operation."""
    return json.dumps({"action": action, "target": target, "params": params, "reference": reference})


def _say(conversation: Sequence[Message]) -> Reply:
    last = conversation[-1]
    if last.role == "user":
        return Reply(calls=(Call("propose", json.loads(last.text)),))
    if last.ok:
        return Reply(f"Done: {last.result['operation_id']} has succeeded.")
    error = last.result["error"]
    if error["code"] == OutcomeUnknown.code:
        return Reply(f"Unknown, a person is on it: {error['operation_id']}.")
    return Reply(f"Not done: {last.result}")
