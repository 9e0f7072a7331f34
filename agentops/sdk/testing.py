"""Try an agent without engine, database or model: its script, its real tools, a clock that is stepped, deaths on demand.

ctx = Rehearsal()
ctx.die(during="refund.create")  # it has happened, and the process dies before it hears so
told = rehearse(support, "Refund A-1001, it arrived damaged.", ctx)
assert len([each for each in ctx.proposals if each.action == "refund.create"]) == 1
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from agentops.sdk.agents import Agent, Call, Message, OfflineScript, Reply
from agentops.sdk.errors import Retryable, SdkError, error_result
from agentops.sdk.rehearsal import (
    Answer,
    Clock,
    Died,
    Outcome,
    Proposal,
    Rehearsal,
    Started,
    Waits,
    answered,
    succeed,
    undecided,
)

__all__ = [
    "Answer",
    "Clock",
    "Died",
    "Outcome",
    "Proposal",
    "Rehearsal",
    "Started",
    "Waits",
    "answered",
    "rehearse",
    "scripted",
    "succeed",
    "undecided",
]

TOOL_TRIES = 3
SAME_CALL_LIMIT = 3


def scripted(*replies: Reply) -> OfflineScript:
    """A model that gives these replies, one a turn."""

    def script(conversation: Sequence[Message]) -> Reply:
        asked = max(place for place, message in enumerate(conversation) if message.role == "user")
        said = sum(message.role == "assistant" for message in conversation[asked:])
        if said >= len(replies):
            raise AssertionError(
                f"The model was asked for a turn {said + 1}, and has {len(replies)} replies."
            )
        return replies[said]

    return script


def rehearse(
    agent: Agent,
    text: str,
    ctx: Rehearsal,
    *,
    model: OfflineScript | None = None,
    earlier: Sequence[tuple[str, str]] = (),
) -> list[Message]:
    """Play one request until it ends or waits, through as many lives as `ctx.die` asks for; returns the conversation.

    With the same request again it goes on where it waited: advance `ctx.clock`, or set another `ctx.outcome`. `earlier` are
    the requests before it in its conversation, each with its answer. An exception of a tool that is no SdkError is raised.
    """
    script = model or agent.offline
    if script is None:
        raise ValueError(f"Agent {agent.name} has no offline script to rehearse: pass `model`.")
    run = _Run(agent, text, ctx, script, earlier)
    if ctx.journal.get("request") != (agent.name, text):
        ctx.forget()
        ctx.journal["request"] = (agent.name, text)
        ctx.journal["began"] = ctx.clock.now
    while True:
        ctx.lives += 1
        try:
            conversation = run.live()
        except Died:
            continue
        return conversation


@dataclass
class _Run:
    agent: Agent
    text: str
    ctx: Rehearsal
    script: OfflineScript
    earlier: Sequence[tuple[str, str]]

    def live(self) -> list[Message]:
        """One life: what is in the journal is read back, the rest is done."""
        steps = 0
        conversation = [message for pair in self.earlier for message in _exchange(*pair)]
        conversation.append(Message("user", self.text))
        asked: list[tuple[Call, ...]] = []
        for turn in count(1):
            if code := self._limit(steps):
                return self._end(conversation, "failed", code)
            if len(asked) >= SAME_CALL_LIMIT and len(set(map(repr, asked[-SAME_CALL_LIMIT:]))) == 1:
                return self._end(conversation, "waiting", waits=["operator"])
            reply = self._reply(f"turn-{turn}", conversation)
            conversation.append(Message("assistant", reply.text))
            if not reply.calls:
                return self._end(conversation, "completed")
            told = list(self._results(f"turn-{turn}", reply.calls))
            conversation += [message for message in told if isinstance(message, Message)]
            waits = [kind for kind in told if isinstance(kind, str)]
            if waits:
                return self._end(conversation, "waiting", waits=waits)
            asked.append(reply.calls)
            steps += 1 + len(reply.calls)
        raise AssertionError("unreachable")

    def _limit(self, steps: int) -> str:
        limits = self.agent.limits
        if self.ctx.clock.now - self.ctx.journal["began"] >= limits.deadline_seconds:
            return "deadline"
        return "step_limit" if steps >= limits.steps else ""

    def _end(
        self, conversation: list[Message], status: str, code: str = "", *, waits: Sequence[str] = ()
    ) -> list[Message]:
        self.ctx.status, self.ctx.error_code, self.ctx.blocked_on = status, code, frozenset(waits)
        return conversation

    def _reply(self, place: str, conversation: list[Message]) -> Reply:
        def ask() -> Reply:
            self.ctx.turns += 1
            return self.script(conversation)

        return self.ctx.once(place, ask)

    def _results(self, turn: str, calls: Sequence[Call]) -> Iterator[Message | str]:
        """Of each call its result, or what it waits for: all of a turn's calls are made before the run waits."""
        for index, call in enumerate(calls):
            place = f"{turn}/call-{index}"
            try:
                ok, result = self.ctx.once(place, partial(self._call, place, call))
            except Waits as waits:
                yield waits.kind
            else:
                yield Message("tool", tool=call.tool, args=call.args, result=result, ok=ok)

    def _call(self, place: str, call: Call) -> tuple[bool, object]:
        tool = self.agent.tool(call.tool)
        if tool is None:
            raise AssertionError(f"Agent {self.agent.name} called {call.tool}, which it does not have.")
        if tool.effect == "undeclared" and place in self.ctx.begun:
            words = "The call was interrupted; it may or may not have happened."
            return False, {"error": {"code": "interrupted", "message": words}}
        self.ctx.begun.add(place)
        for attempt in count(1):
            self.ctx.begin(place, tool)
            try:
                return True, tool.dump(tool(self.ctx, **tool.bind(call.args)))
            except Retryable as error:
                if attempt == TOOL_TRIES:
                    return False, error_result(error)
                self.ctx.clock.advance(error.retry_after_seconds or 2.0 ** (attempt - 1))
            except SdkError as error:
                return False, error_result(error)
        raise AssertionError("unreachable")


def _exchange(asked: str, answer: str) -> tuple[Message, Message]:
    return Message("user", asked), Message("assistant", answer)
