"""Model turn, tool calls, model turn: how one action of the stepper is carried out and journaled."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.conf import settings

from agentops import llm
from agentops.kernel.redaction import mask, mask_text, printable
from agentops.llm.prices import parse_prices
from agentops.llm.turns import CallResult, TurnResult, TurnSettings
from agentops.sdk.errors import (
    InvalidArguments,
    JournalMismatch,
    OperationRefused,
    Retryable,
    SdkError,
    error_result,
)
from agentops.sdk.text import repaired_json
from agentops.sdk.tools import Tool, digest_of
from agentops.telemetry.logs import bound_contextvars, logger
from runs import ends
from runs.events import Event

from . import children
from .context import CallContext, CallSignal
from .ledger import NewStep, RunLedger
from .live import LIFE_LOST, LeaseLost, LiveRun, Waiting
from .settle import proposed_by
from .stepper import AskModel, Call, calls_of, results_of, turn_key
from .threads import ToolThreads

log = logger(__name__)

DELTA_SECONDS = 0.1
MODEL_TRIES = 4
TOOL_TRIES = 3
WAIT_SECONDS = 3600.0  # at most, before a tool is tried again, whatever it asks for
LONG_PAUSE_SECONDS = 5.0  # beyond it the run parks meanwhile
SUMMARY_CHARS = 300
INTERRUPTED = "interrupted"


class RunFailed(Exception):
    """The run cannot go on; `code` says why, the sentence is masked."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


async def ask_model(run: LiveRun, action: AskModel, ledger: RunLedger, threads: ToolThreads) -> None:
    """One turn: its text as it comes, then its message, its calls and its cost in one checkpoint."""
    await _reserve(run, action, ledger, threads)
    began, started_at = time.monotonic(), run.now()
    for attempt in range(_first_try(run, action.key), MODEL_TRIES + 1):
        deltas = _Deltas(run, action.turn, attempt, ledger)
        try:
            result = await _turn(run, action, deltas)
            break
        except llm.ModelRetryable as error:
            log.warning("model_retryable", attempt=attempt, code=error.code, error=error.message)
            if attempt == MODEL_TRIES:
                raise RunFailed(f"model_{error.code}"[:60], error.message) from error
            await _before_next_try(run, action.key, attempt, error.retry_after_seconds, ledger)
        except llm.ModelError as error:
            raise RunFailed(f"model_{error.code}"[:60], error.message) from error
        finally:
            await deltas.close()
    await _journal_turn(run, action, ledger, result, attempt, started_at, time.monotonic() - began)


async def _reserve(run: LiveRun, action: AskModel, ledger: RunLedger, threads: ToolThreads) -> None:
    """Set the turn's worst price aside, once for all tries of it; raises RunFailed where the budget does not cover it."""
    if _model(run) == llm.OFFLINE:
        return
    bounds = _bounds()
    chars = llm.input_chars(run.agent.instructions, _history(run, action), run.agent.tools)
    worst = llm.worst_cost_microusd(_model(run), chars, bounds.max_output_tokens, bounds.prices)
    if await ledger.reserve(run, worst):
        return
    took = await threads.run(lambda: children.take_slice(run, worst), name="service")
    if not took or not await ledger.reserve(run, worst):
        dollars = f"{worst / 1_000_000:.2f} USD"
        raise RunFailed("budget", f"The next turn may cost {dollars}, and so much is not left of the budget.")


def _model(run: LiveRun) -> str:
    return run.agent.model or settings.AGENTOPS_MODEL


def _bounds() -> TurnSettings:
    return TurnSettings(prices=parse_prices(settings.AGENTOPS_MODEL_PRICES))


def _history(run: LiveRun, action: AskModel) -> Any:
    turns = [
        (run.steps[turn_key(turn)]["response"], results_of(run.steps, turn)) for turn in range(1, action.turn)
    ]
    return llm.history(run.input, turns, run.earlier)


async def _turn(run: LiveRun, action: AskModel, deltas: "_Deltas") -> TurnResult:
    bounds = _bounds()
    run.busy(bounds.deadline_seconds + 10)
    run.in_model = True
    try:
        return await llm.turn(
            _model(run),
            instructions=run.agent.instructions,
            history=_history(run, action),
            tools=run.agent.tools,
            offline=run.agent.offline,
            settings=bounds,
            on_delta=deltas.add,
        )
    finally:
        run.in_model = False


async def _journal_turn(
    run: LiveRun,
    action: AskModel,
    ledger: RunLedger,
    result: TurnResult,
    attempt: int,
    started_at: datetime,
    took_seconds: float,
) -> None:
    record = {
        "response": result.response,
        "text": result.text,
        "calls": [{"name": call.name, "args": call.args} for call in result.calls],
    }
    step = NewStep(
        action.key,
        "model",
        result.model,
        record,
        input_digest=asked_digest(run, action.turn, run.agent.digest),
        took_seconds=took_seconds,
        model=result.model,
        input_tokens=result.input_tokens,
        output_tokens=result.output_tokens,
        cost_microusd=result.cost_microusd,
        counts=True,
    )
    message = Event(
        "assistant.message",
        {
            "turn": action.turn,
            "attempt": attempt,
            "started_at": started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "model": result.model,
            "text": result.text,
            "tokens": {"input": result.input_tokens, "output": result.output_tokens},
            "cost_microusd": result.cost_microusd,
            "calls": len(result.calls),
        },
    )
    steps = {action.key: record}
    events = [message]
    for call in calls_of(steps, action.turn):
        told = {"call_id": call.key, "tool": call.tool[:80]}
        events.append(Event("tool.requested", told | {"arguments": _shown(call.arguments)}))
        # The calls begin at once in this life, so that one commit tells both.
        events.append(Event("tool.started", told | {"attempt": 1}))
    await ledger.checkpoint(run, [step], events)


def asked_digest(run: LiveRun, turn: int, agent: str) -> str:
    """A digest of all that a turn was asked with, `agent` being the digest of its definition; recorded only: a new release
    asks differently, and goes on."""
    told = [run.steps[turn_key(each)]["text"] for each in range(1, turn)]
    results = [[result.result for result in results_of(run.steps, each)] for each in range(1, turn)]
    return digest_of([agent, run.input, told, results])


def _shown(arguments: str) -> Any:
    try:
        return mask(repaired_json(json.loads(arguments or "{}")))
    except (ValueError, RecursionError):
        return mask_text(printable(arguments, 500))


class _Deltas:
    """Gathers a turn's text for about 100 ms, then writes it as one event, also while the model says nothing more."""

    def __init__(self, run: LiveRun, turn: int, attempt: int, ledger: RunLedger) -> None:
        self._run, self._ledger = run, ledger
        self._at = {"turn": turn, "attempt": attempt}
        self._text = ""
        self._offset = 0
        self._closed = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def add(self, text: str) -> None:
        self._text += text
        if self._writing is not None and self._writing.done():
            await self._writing  # its failure is the turn's
            self._writing = None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_soon())

    async def _write_soon(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), DELTA_SECONDS)
            return  # what is left is in the message
        text, self._text = self._text, ""
        event = Event("assistant.delta", {**self._at, "offset": self._offset, "text": text})
        self._offset += len(text)
        await self._ledger.checkpoint(self._run, events=[event])

    async def close(self) -> None:
        """Nothing is written after this; raises what a write has met."""
        self._closed.set()
        if self._writing is not None:
            await self._writing


async def run_tools(run: LiveRun, calls: Sequence[Call], ledger: RunLedger, threads: ToolThreads) -> None:
    """All due calls of a turn side by side; each is journaled as it settles, or says what it waits for."""
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(_run_tool(run, call, ledger, threads))


async def _run_tool(run: LiveRun, call: Call, ledger: RunLedger, threads: ToolThreads) -> None:
    began = time.monotonic()
    tool = run.agent.tool(call.tool)
    with bound_contextvars(step=call.key):
        try:
            outcome = await _outcome(run, call, tool, ledger, threads)
        except Waiting as waiting:
            run.waits[call.key] = waiting.kinds
            run.wake_within(waiting.until)
            return
    result, error = outcome
    told: dict[str, Any] = {
        "call_id": call.key,
        "tool": call.tool[:80],
        "seconds": round(time.monotonic() - began, 3),
    }
    if error is None:
        event = Event("tool.completed", told | {"summary": _summary(result.result)})
    else:
        code, message = error
        event = Event("tool.failed", told | {"code": code, "message": mask_text(printable(message, 500))})
    step = NewStep(
        call.key,
        "tool",
        call.tool,
        {"ok": result.ok, "result": result.result},
        status="completed" if error is None else "interrupted" if error[0] == INTERRUPTED else "failed",
        asked=_shown(call.arguments),
        took_seconds=time.monotonic() - began,
        error_class=error[0][:80] if error else "",
        counts=True,
    )
    await ledger.checkpoint(run, [step], [event])


async def _outcome(
    run: LiveRun, call: Call, tool: Tool | None, ledger: RunLedger, threads: ToolThreads
) -> tuple[CallResult, tuple[str, str] | None]:
    """What a call came to, and the error's code and words where it failed; the model is told either."""
    if tool is None:
        return _failed("unknown_tool", f"There is no tool {call.tool[:80]}.")
    try:
        arguments = tool.bind(call.arguments)
    except InvalidArguments as error:
        return _told(error)
    if tool.effect == "undeclared":
        if call.key in run.started:
            return _failed(INTERRUPTED, "The call was interrupted; it may or may not have happened.")
        begun = NewStep(call.key, "tool", call.tool, None, status="started", asked=_shown(call.arguments))
        await ledger.checkpoint(run, [begun])
    for attempt in range(_first_try(run, call.key), TOOL_TRIES + 1):
        if attempt > 1:
            started = {"call_id": call.key, "tool": call.tool[:80], "attempt": attempt}
            await ledger.checkpoint(run, events=[Event("tool.started", started)])
        signal = CallSignal(run.signal)
        try:
            result = await _call(run, call, tool, arguments, signal, ledger, threads)
            return CallResult(result), None
        except Retryable as error:
            if attempt == TOOL_TRIES:
                return _told(error)
            may_park = tool.effect != "undeclared"  # its next life could not tell a wait from an interruption
            wanted = min(error.retry_after_seconds or 0.0, WAIT_SECONDS)
            await _before_next_try(run, call.key, attempt, wanted, ledger, may_park)
        except JournalMismatch as error:
            raise RunFailed(error.code, error.message) from error
        except OperationRefused as refused:
            if run.agent.refusal_ends:
                raise RunFailed(ends.of_refusal(refused.status, refused.code), refused.reason) from refused
            return _told(refused)
        except SdkError as error:
            return _told(error)
        except TimeoutError:
            signal.abandon()
            if tool.effect == "proposes":
                made, open_kinds = await threads.run(lambda: proposed_by(run, call.key), name="service")
                if open_kinds:
                    raise Waiting(*open_kinds) from None
                if made and attempt < TOOL_TRIES:
                    continue  # they have ended: called again, it gets their receipts
            return _failed("timeout", f"{tool.name} did not end within {tool.timeout_seconds:g} seconds.")
        except (LeaseLost, *LIFE_LOST):
            raise
        except Exception as error:
            log.exception("tool_failed", tool=tool.name)
            return _failed(type(error).__name__, "The tool failed. What it had done before is not known.")
    raise AssertionError("unreachable")


def _retry_key(key: str, attempt: int) -> str:
    return f"{key}/retry-{attempt}"


def _first_try(run: LiveRun, key: str) -> int:
    """The number of the next try, over all lives of the run; raises Waiting where it is not yet its time."""
    attempt = 1
    while (recorded := run.steps.get(_retry_key(key, attempt))) is not None:
        attempt += 1
        left = recorded["until"] - run.now().timestamp()
        if left > 0:
            raise Waiting("timer", until=left)
    return attempt


async def _before_next_try(
    run: LiveRun,
    key: str,
    attempt: int,
    wanted_seconds: float | None,
    ledger: RunLedger,
    may_park: bool = True,
) -> None:
    """A short pause is waited for here; in a long one the run parks, so that it holds no lease and a cancel ends it."""
    wanted = max(0.0, wanted_seconds or 0.0)  # no number, and a moment that is past, are none
    seconds = wanted or 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)
    if may_park and seconds > LONG_PAUSE_SECONDS:
        step = NewStep(_retry_key(key, attempt), "step", "retry", {"until": run.now().timestamp() + seconds})
        await ledger.checkpoint(run, [step])
        raise Waiting("timer", until=seconds)
    run.busy(seconds + 1)
    await asyncio.sleep(seconds)
    if run.paused and may_park:
        raise Waiting()


async def _call(
    run: LiveRun,
    call: Call,
    tool: Tool,
    arguments: dict[str, Any],
    signal: CallSignal,
    ledger: RunLedger,
    threads: ToolThreads,
) -> Any:
    loop = asyncio.get_running_loop()

    async def checkpoint(steps: Sequence[NewStep], events: Sequence[Event]) -> None:
        signal.require_time()  # asked on the loop, where the call is abandoned too
        await ledger.checkpoint(run, steps, events)

    def write(steps: Sequence[NewStep], events: Sequence[Event]) -> None:
        asyncio.run_coroutine_threadsafe(checkpoint(steps, events), loop).result()

    context = CallContext(run, call.key, tool, signal, write)
    run.busy(tool.timeout_seconds)
    return await threads.run(
        lambda: tool.dump(tool(context, **arguments)),
        limit_seconds=tool.timeout_seconds,
        name=f"tool {tool.name}",
        call=(run.id, call.key),
    )


def _told(error: SdkError) -> tuple[CallResult, tuple[str, str]]:
    return CallResult(error_result(error), ok=False), (error.code, error.message)


def _failed(code: str, message: str) -> tuple[CallResult, tuple[str, str]]:
    return CallResult({"error": {"code": code, "message": message}}, ok=False), (code, message)


def _summary(result: Any) -> str:
    return mask_text(printable(json.dumps(result, ensure_ascii=False), SUMMARY_CHARS))
