"""The pure stepper: what a run has done goes in, what it does next comes out. No clock, no database, no model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentops.llm.turns import CallResult

SAME_CALL_LIMIT = 3
REPEATED_CALL = "repeated_call"  # why a run stands still that reached it


@dataclass(frozen=True)
class Call:
    """One request of a turn for a tool, with its place in the journal."""

    key: str  # "turn-2/call-0"
    tool: str
    arguments: str  # JSON text as the model wrote it


@dataclass(frozen=True)
class AskModel:
    turn: int
    key: str


@dataclass(frozen=True)
class RunTools:
    calls: Sequence[Call]


@dataclass(frozen=True)
class Park:
    """Nothing can be done until what the run is blocked on has moved."""

    kinds: frozenset[str]
    code: str = ""  # why, where a person must do something
    detail: str = ""


@dataclass(frozen=True)
class End:
    """`code` is empty for an answer; else the run failed for that reason."""

    text: str = ""
    code: str = ""
    detail: str = ""


type Action = AskModel | RunTools | Park | End


@dataclass
class Journal:
    """What a run has done and may do. `steps` are completed results by key; `waits` is what calls wait for in this life."""

    steps: Mapping[str, Any]
    waits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    max_steps: int = 20
    steps_taken: int = 0
    budget_microusd: int = 0
    spent_microusd: int = 0
    past_deadline: bool = False


def turn_key(turn: int) -> str:
    return f"turn-{turn}"


def go_on_key(turn: int) -> str:
    """The step by which a person let a run go on after that turn."""
    return f"{turn_key(turn)}/go-on"


def calls_of(steps: Mapping[str, Any], turn: int) -> list[Call]:
    return [
        Call(f"{turn_key(turn)}/call-{index}", call["name"], call["args"])
        for index, call in enumerate(steps[turn_key(turn)]["calls"])
    ]


def turns_done(steps: Mapping[str, Any]) -> int:
    turn = 0
    while turn_key(turn + 1) in steps:
        turn += 1
    return turn


def advance(journal: Journal) -> Action:
    """The next action of a run, from its journal alone."""
    steps = journal.steps
    last = turns_done(steps)
    if last:
        calls = calls_of(steps, last)
        if not calls:
            return End(text=steps[turn_key(last)]["text"])
        undone = [call for call in calls if call.key not in steps]
        if undone:
            due = [call for call in undone if call.key not in journal.waits]
            if due and not journal.past_deadline:
                return RunTools(due)
            if undone and not due:
                return Park(frozenset().union(*(journal.waits[call.key] for call in undone)))
        if _same_call_again(steps, last) and not journal.past_deadline:
            tool = calls_of(steps, last)[0].tool[:80]
            detail = f"It called {tool} {SAME_CALL_LIMIT} times in a row with the same arguments."
            return Park(frozenset({"operator"}), REPEATED_CALL, detail)
    return _limit(journal) or AskModel(last + 1, turn_key(last + 1))


def _limit(journal: Journal) -> End | None:
    if journal.past_deadline:
        return End(code="deadline", detail="The run's time was up before it had an answer.")
    if journal.steps_taken >= journal.max_steps:
        return End(code="step_limit", detail=f"The run took its {journal.max_steps} steps without an answer.")
    if journal.spent_microusd >= journal.budget_microusd > 0:
        return End(code="budget", detail="The run has spent its budget before it had an answer.")
    return None


def _same_call_again(steps: Mapping[str, Any], last: int) -> bool:
    """Whether the last turns asked the very same of the very same tool too often in a row, since a person let it go on."""
    turns = range(last - SAME_CALL_LIMIT + 1, last + 1)
    if turns[0] < 1 or any(go_on_key(turn) in steps for turn in turns):
        return False
    recent = [calls_of(steps, turn) for turn in turns]
    asked = [[(call.tool, _value_of(call.arguments)) for call in calls] for calls in recent]
    return all(turn == asked[0] for turn in asked)


def _value_of(arguments: str) -> Any:
    """What they say, however a model spaces and orders it; as they stand where they are no JSON."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def results_of(steps: Mapping[str, Any], turn: int) -> list[CallResult]:
    """What the calls of a finished turn came to, in their order."""
    return [CallResult(steps[call.key]["result"], steps[call.key]["ok"]) for call in calls_of(steps, turn)]
