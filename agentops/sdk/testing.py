"""Try an agent without engine, database or model: its offline script, its real tools, and a book of what it proposed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentops.sdk.agents import Agent, Message
from agentops.sdk.context import BoundLogger, Principal, Signal, StepContext, ToolContext
from agentops.sdk.errors import DuplicateStep, JournalMismatch, SdkError, error_result
from agentops.sdk.tools import digest_of
from agentops.sdk.values import ChildRun, Receipt


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


Outcome = Callable[[Proposal], Receipt]
Answer = Callable[[Started], ChildRun]


def answered(child: Started) -> ChildRun:
    """The ordinary answer of a run that was started: its input again."""
    text = "" if child.detached else f"{child.agent}: {child.input}"
    return ChildRun(run_id=f"run_{child.agent}", agent=child.agent, text=text)


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
    """A context in memory. Steps are kept between calls, so calling a tool again rehearses a crash."""

    outcome: Outcome = succeed
    answer: Answer = answered
    principal: Principal = field(default_factory=lambda: Principal(tenant="acme", actor="user:rehearsal"))
    run_id: str = "run_rehearsal"
    call_id: str = "turn-1/call-0"
    signal: Signal = field(default_factory=threading.Event)
    log: BoundLogger = field(default_factory=_Silent)
    proposals: list[Proposal] = field(default_factory=list)
    children: list[Started] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _journal: dict[str, tuple[str, Any]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def begin(self, call_id: str) -> None:
        """A new life of this call: names may be used again, completed steps answer."""
        self.call_id = call_id
        self._seen.clear()

    def step[*Ts, R](
        self, name: str, fn: Callable[[StepContext, *Ts], R], *args: *Ts, key: str | None = None
    ) -> R:
        step_key = f"{self.call_id}/{key or name}"
        if step_key in self._seen:
            raise DuplicateStep(f"Step {step_key} was done already in this call: give key= inside a loop.")
        self._seen.add(step_key)
        digest = digest_of([repr(arg) for arg in args])
        if step_key not in self._journal:
            self._journal[step_key] = digest, fn(_Step(step_key), *args)
        recorded, result = self._journal[step_key]
        if recorded != digest:
            raise JournalMismatch(f"Step {step_key} was recorded with other arguments.")
        return result  # type: ignore[no-any-return]

    def operation(
        self, action: str, *, target: str, params: dict[str, Any], reference: str, key: str | None = None
    ) -> Receipt:
        proposal = Proposal(action, target, params, reference, key)
        self.proposals.append(proposal)
        return self.outcome(proposal)

    def run(
        self,
        agent: Agent | str,
        input: str,
        *,
        budget_cents: int | None = None,
        detached: bool = False,
        key: str | None = None,
    ) -> ChildRun:
        name = agent if isinstance(agent, str) else agent.name
        child = Started(name, input, budget_cents, detached, key)
        self.children.append(child)
        return self.answer(child)

    def progress(self, text: str) -> None:
        self.lines.append(text)

    def sleep(self, seconds: float) -> None:
        self.lines.append(f"slept {seconds} s")

    def identity_headers(self, audience: str, target: str | None = None) -> dict[str, str]:
        return {"Txn-Token": f"rehearsal {audience} {target or ''}".strip()}


def rehearse(agent: Agent, text: str, ctx: Rehearsal, *, max_turns: int = 10) -> list[Message]:
    """The whole conversation of the offline script about one request; the last message is the answer."""
    if agent.offline is None:
        raise ValueError(f"Agent {agent.name} has no offline script to rehearse.")
    conversation = [Message("user", text)]
    for turn in range(1, max_turns + 1):
        reply = agent.offline(conversation)
        conversation.append(Message("assistant", reply.text))
        if not reply.calls:
            return conversation
        for index, call in enumerate(reply.calls):
            ctx.begin(f"turn-{turn}/call-{index}")
            ok, result = _answer(agent, call.tool, call.args, ctx)
            conversation.append(Message("tool", tool=call.tool, args=call.args, result=result, ok=ok))
    raise AssertionError(f"Agent {agent.name} gave no answer in {max_turns} turns.")


def _answer(agent: Agent, name: str, args: dict[str, Any], ctx: ToolContext) -> tuple[bool, Any]:
    tool = agent.tool(name)
    if tool is None:
        raise AssertionError(f"Agent {agent.name} called {name}, which it does not have.")
    try:
        return True, tool.dump(tool(ctx, **tool.bind(args)))
    except SdkError as error:
        return False, error_result(error)
