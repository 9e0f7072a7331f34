"""Replaying a run against its record: would the present code walk the same way? No model, no provider, no row is touched."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db import connection, transaction

from agentops.kernel.clock import now
from agentops.kernel.problems import Conflict
from agentops.kernel.sealed import CannotUnseal
from agentops.sdk import agents as known_agents
from agentops.sdk.agents import Agent
from agentops.sdk.errors import InvalidArguments, SdkError, error_result
from agentops.sdk.tools import Tool
from agentops.tenancy import vault
from runs import queries
from runs.models import AgentRun
from runs.releases import manifest_of

from .agent_loop import asked_digest
from .live import LiveRun
from .recorded import Off, Record, RecordedCall, record_of, shut_in
from .stepper import AskModel, Call, End, Park, RunTools, advance, calls_of, turn_key

_WALKED = ("proposes", "repeatable")  # only what declares that it may run again is run again


class Match(StrEnum):
    MATCHED = "matched"
    DIFFERS = "differs"
    MISSING = "missing"  # on one side only


@dataclass(frozen=True)
class Line:
    """One step of the walk: its place, the name of the model, tool, action or step, and what came of the comparison."""

    place: str
    name: str
    match: Match
    detail: str = ""


def replay(run: AgentRun) -> list[Line]:
    """Walk the run again with this process's code, every turn, call and effect answered from the record.

    It is one transaction that PostgreSQL lets write nothing, and a tool's code is run only where it declares that it may run
    again, in a thread that may open no connection. Raises Conflict (no_agent, erased).
    """
    agent = known_agents.agent(run.agent)
    if agent is None:
        raise Conflict(f"The present release has no agent {run.agent}.", code="no_agent")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        try:
            record = record_of(run)
            return list(_Walk(record, _live(record, agent)).lines())
        except CannotUnseal:
            raise Conflict(
                f"Words of {run} have been erased; its record is not whole.", code="erased"
            ) from None


def _live(record: Record, agent: Agent) -> LiveRun:
    """The run as a driver would hold it, with nothing done yet, and no lease."""
    run = record.run
    return LiveRun(
        id=run.id,
        tenant_id=run.tenant_id,
        tenant=run.tenant.slug,
        actor=run.actor,
        principal=run.principal,
        channel=run.channel,
        agent=agent,
        release=run.release.digest,
        trace_id=run.trace_id,
        key=vault.opened(run.data_key_id),
        owner="",
        epoch=0,
        input=queries.input_text(run),
        earlier=[],
        steps={key: step for key, step in record.steps.items() if key.endswith("/go-on")},
        started=set(),
        # A retry has what was left of it; its budget is not spent here.
        max_steps=run.max_steps + sum(each.steps_taken for each in record.line[1:]),
        steps_taken=0,
        budget_microusd=0,
        spent_microusd=0,
        inbox_read=0,
        deadline=None,
        crash_count=0,
        missing=[],
        concurrency_key="",
        aftermath=False,
        taken_at=now(),
    )


class _Walk:
    def __init__(self, record: Record, live: LiveRun) -> None:
        self.record, self.live, self.agent = record, live, live.agent
        self.run = record.run
        self.agents = {each.release.manifest["agent"] for each in record.line} | {self.agent.digest}

    def lines(self) -> Iterator[Line]:
        """Until the record or the code comes to an end; then what of the record was never reached."""
        yield from self._release()
        while True:
            match advance(self.live.journal()):
                case AskModel(turn, key):
                    if key not in self.record.steps:
                        yield self._end_of_record(key, "The next thing would be to ask the model.")
                        break
                    yield self._turn(turn, key)
                    self._take(key)
                case RunTools(calls):
                    for call in calls:
                        yield from self._call(call)
                        self._take(call.key)
                    if any(call.key not in self.record.steps for call in calls):
                        yield self._end_of_record(calls[0].key, "Here are calls that have not ended.")
                        break
                case Park(_, code, detail):
                    yield self._end(code, detail, stands=self.run.error_code == code)
                    break
                case End(text, code, detail):
                    told = queries.result(self.run)
                    is_same = self.run.error_code == code if code else told == {"text": text}
                    yield self._end(code or "completed", detail, stands=is_same)
                    break
        yield from self._unreached()

    def _take(self, key: str) -> None:
        if key in self.record.steps:
            self.live.steps[key] = self.record.steps[key]
            self.live.steps_taken += 1

    def _release(self) -> Iterator[Line]:
        then = self.run.release.manifest
        here = manifest_of(self.agent, then.get("policies", ""))
        changed = [
            f"tool {name}" if part == "tools" else part
            for part in ("prompt", "model", "limits", "tools")
            for name in (_changed(then[part], here[part]) if part == "tools" else [part])
            if then[part] != here[part]
        ]
        if changed:
            yield Line("release", self.run.agent, Match.DIFFERS, f"Another {', '.join(changed)} than then.")
        else:
            yield Line("release", self.run.agent, Match.MATCHED)

    def _turn(self, turn: int, key: str) -> Line:
        asked = {asked_digest(self.live, turn, agent) for agent in self.agents}
        if self.record.digests[key] in asked:
            return Line(key, "model", Match.MATCHED)
        return Line(key, "model", Match.DIFFERS, "It was asked something else than what the record leads to.")

    def _call(self, call: Call) -> Iterator[Line]:
        recorded = self.record.steps.get(call.key)
        if recorded is None:
            return
        tool = self.agent.tool(call.tool)
        if tool is None:
            same = not recorded["ok"] and recorded["result"]["error"]["code"] == "unknown_tool"
            yield Line(
                call.key,
                call.tool,
                Match.MATCHED if same else Match.DIFFERS,
                "" if same else "There is no such tool now.",
            )
            return
        try:
            arguments = tool.bind(call.arguments)
        except InvalidArguments as error:
            yield self._compared(call, False, error_result(error), "Its arguments are refused now.")
            return
        if tool.effect not in _WALKED:
            same = recorded["ok"] or recorded["result"]["error"]["code"] != InvalidArguments.code
            yield Line(
                call.key,
                tool.name,
                Match.MATCHED if same else Match.DIFFERS,
                "From the record; its code is not run." if same else "Its arguments are accepted now.",
            )
            return
        yield from self._walk(call, tool, arguments)

    def _walk(self, call: Call, tool: Tool, arguments: dict[str, Any]) -> Iterator[Line]:
        context = RecordedCall(self.live, call.key, tool, self.record)
        off, ok, result = None, True, None
        try:
            with transaction.atomic(), shut_in(call.key):
                result = tool.dump(tool(context, **arguments))
        except Off as met:
            off = met
        except SdkError as error:
            ok, result = False, error_result(error)
        except Exception as error:  # as in a life: the class is told, and no more
            logging.getLogger(__name__).debug("a walked tool failed", exc_info=True)
            ok, result = False, {"error": {"code": type(error).__name__}}
        yield from (Line(place, _last(place), Match.MATCHED) for place in context.walked)
        if off is None:
            left = sorted(self.record.below(call.key) - {*context.walked})
            yield from (Line(place, _last(place), Match.MISSING, "Only on record.") for place in left)
            yield self._compared(call, ok, result, "It comes to something else now.")
        elif off.outcome:
            yield Line(off.place, _last(off.place), Match(off.outcome), off.detail)
            yield Line(call.key, tool.name, Match.DIFFERS, "From here on it goes another way.")
        else:
            yield Line(call.key, tool.name, Match.MATCHED, off.detail)

    def _compared(self, call: Call, ok: bool, result: Any, detail: str) -> Line:
        recorded = self.record.steps[call.key]
        is_same = recorded == {"ok": ok, "result": result}
        if not ok and not recorded["ok"]:
            is_same = recorded["result"]["error"]["code"] == result["error"]["code"]
        return Line(
            call.key, call.tool, Match.MATCHED if is_same else Match.DIFFERS, "" if is_same else detail
        )

    def _end_of_record(self, key: str, what: str) -> Line:
        """Where the run has stopped: nothing to compare with. One that has its answer should have led elsewhere."""
        run = self.run
        state = f"{run.status}, {run.error_code}" if run.error_code else run.status
        match = Match.MISSING if queries.result(run) is not None else Match.MATCHED
        return Line(key, "end", match, f"The record ends here: the run is {state}. {what}")

    def _end(self, code: str, detail: str, *, stands: bool) -> Line:
        if stands:
            return Line("end", code, Match.MATCHED, detail)
        was = self.run.error_code or self.run.status
        return Line("end", code, Match.DIFFERS, f"On record it is {was}. {detail}".strip())

    def _unreached(self) -> Iterator[Line]:
        for turn in range(1, 1 + sum(key.startswith("turn-") for key in self.record.steps)):
            if turn_key(turn) not in self.record.steps or turn_key(turn) in self.live.steps:
                continue
            yield Line(turn_key(turn), "model", Match.MISSING, "Only on record.")
            for call in calls_of(self.record.steps, turn):
                if call.key in self.record.steps:
                    yield Line(call.key, call.tool, Match.MISSING, "Only on record.")


def _last(place: str) -> str:
    return place.rpartition("/")[2]


def _changed(then: dict[str, str], here: dict[str, str]) -> list[str]:
    return sorted(name for name in {*then, *here} if then.get(name) != here.get(name))
