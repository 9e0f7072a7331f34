"""Logs of runs as the engine writes them, for both reducers."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

BEGIN = datetime(2026, 11, 29, 14, 2, 11, 123_456, tzinfo=UTC)
OPERATION = {
    "operation_id": "op_1",
    "action": "refund.create",
    "target": "order:A-1002",
    "amount_minor": 48_900,
    "currency": "EUR",
}
MAIL = {
    "operation_id": "op_2",
    "action": "mail.send",
    "target": "customer:A-C1002",
    "amount_minor": None,
    "currency": None,
}


class Log:
    """`log(0.5, "run.started", worker="w-3")`: an event half a second after the one before."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.at = BEGIN

    def __call__(self, later: float, kind: str, /, **data: Any) -> "Log":
        self.at += timedelta(seconds=later)
        at = self.at.isoformat(timespec="microseconds").replace("+00:00", "Z")
        self.frames.append({"seq": len(self.frames) + 1, "type": kind, "at": at, "data": data})
        return self


def turn(log: Log, number: int, text: str, **data: Any) -> None:
    log(
        0.4,
        "assistant.message",
        turn=number,
        attempt=1,
        started_at=log.at.isoformat(timespec="seconds"),
        model="offline",
        text=text,
        tokens={"input": 812 * number, "output": 31},
        cost_microusd=2_150,
        calls=1,
        **data,
    )


def call(log: Log, key: str, tool: str, arguments: Any) -> None:
    log(0, "tool.requested", call_id=key, tool=tool, arguments=arguments)
    log(0.02, "tool.started", call_id=key, tool=tool, attempt=1)


def asked_to_a_person() -> Log:
    """Up to the moment at which a person is asked."""
    log = Log()
    log(0, "run.created", agent="support-agent", actor="customer:A-C1002", channel="rest")
    log(1.2, "run.started", worker="w-3", release="sha256:1a2b")
    log(0.1, "assistant.delta", turn=1, attempt=1, offset=0, text="Let me ")
    log(0.1, "assistant.delta", turn=1, attempt=1, offset=7, text="look.")
    turn(log, 1, "Let me look up order A-1002.")
    call(log, "turn-1/call-0", "lookup_order", {"order_id": "A-1002"})
    log(
        5.0,
        "tool.failed",
        call_id="turn-1/call-0",
        tool="lookup_order",
        code="timeout",
        message="No answer in 5 s.",
    )
    log(2.0, "tool.started", call_id="turn-1/call-0", tool="lookup_order", attempt=2)
    log(0.6, "tool.completed", call_id="turn-1/call-0", tool="lookup_order", seconds=0.6, summary="delivered")
    turn(log, 2, "I will request the refund.")
    call(
        log,
        "turn-2/call-0",
        "refund_order",
        {"order_id": "A-1002", "amount": {"amount_minor": 48_900}, "line": None},
    )
    log(0.2, "operation.proposed", **OPERATION, **{"from": None, "reason": ""})
    log(
        0.05,
        "approval.requested",
        approval_id="apr_1",
        operation_id="op_1",
        expires_at="2026-11-30T14:02:20Z",
    )
    return log


def approved(log: Log) -> Log:
    log(294.6, "approval.decided", approval_id="apr_1", operation_id="op_1", status="approved", by="user:7")
    log(0, "operation.approved", **OPERATION, **{"from": "pending", "reason": "approved"})
    log(5.1, "operation.dispatched", **OPERATION, **{"from": "approved", "reason": "", "attempt": 1})
    return log


def story() -> list[dict[str, Any]]:
    """A lost answer that a look-up settles, a receipt by mail, and the end."""
    log = approved(asked_to_a_person())
    log(10.0, "operation.unknown", **OPERATION, **{"from": "executing", "reason": "timeout"})
    log(1.0, "run.resumed", why="lease_lost", worker="w-1")
    log(
        12.5,
        "operation.succeeded",
        **OPERATION,
        **{"from": "unknown", "reason": "look_up", "provider_ref": "re_91"},
    )
    log(0.1, "run.resumed", why="wait", worker="w-1")
    log(0.1, "operation.proposed", **MAIL, **{"from": None, "reason": ""})
    log(0.01, "operation.approved", **MAIL, **{"from": "pending", "reason": "mail.receipts"})
    log(0.03, "operation.dispatched", **MAIL, **{"from": "approved", "reason": "", "attempt": 1})
    log(
        0.1, "operation.succeeded", **MAIL, **{"from": "executing", "reason": "answer", "provider_ref": "m_1"}
    )
    log(0.05, "tool.completed", call_id="turn-2/call-0", tool="refund_order", seconds=0.4, summary="{}")
    turn(log, 3, "I have refunded €489.00.")
    log(0.01, "run.completed")
    return log.frames


def cancelled() -> list[dict[str, Any]]:
    log = asked_to_a_person()
    log(30, "run.cancel_requested", actor="user:9", reason="asked by phone", code="cancelled")
    log(0.1, "approval.decided", approval_id="apr_1", operation_id="op_1", status="withdrawn", by="user:9")
    log(0, "operation.cancelled", **OPERATION, **{"from": "pending", "reason": "run_cancelled"})
    log(0, "run.cancelled", code="cancelled", detail="asked by phone", actor="user:9")
    return log.frames


def denied() -> list[dict[str, Any]]:
    log = Log()
    log(0, "run.created", agent="support-agent", actor="user:7", channel="rest")
    log(0.2, "run.started", worker="w-1")
    turn(log, 1, "")
    call(
        log,
        "turn-1/call-0",
        "refund_order",
        {"amounts": [1, 2.5, 3.0], "fast": True, "why": "\u202eevil\x00 <b>"},
    )
    log(0.1, "operation.proposed", **OPERATION, **{"from": None, "reason": ""})
    log(0, "operation.rejected", **OPERATION, **{"from": "pending", "reason": "refund.over_ceiling"})
    log(
        0.1,
        "tool.failed",
        call_id="turn-1/call-0",
        tool="refund_order",
        code="refund.over_ceiling",
        message="x" * 5_000,
    )
    log(0.1, "run.paused", why="person", actor="user:7", reason="The shop is being moved.")
    log(700, "run.resumed", why="pause", worker="w-2")
    log(0.1, "run.failed", code="max_steps", detail="", actor="system")
    return log.frames


def given_up_waiting() -> list[dict[str, Any]]:
    """The run answers that nobody knows, and ends once somebody does."""
    log = approved(asked_to_a_person())
    log(10, "operation.unknown", **OPERATION, **{"from": "executing", "reason": "no_answer"})
    log(
        900,
        "tool.failed",
        call_id="turn-2/call-0",
        tool="refund_order",
        code="outcome_unknown",
        message="Its outcome is unknown, a person is on it.",
    )
    turn(log, 3, "I do not know yet whether the refund was made.")
    return log.frames


def erased() -> list[dict[str, Any]]:
    """Every kind of event with its words gone."""
    kinds = [frame["type"] for frame in story() + cancelled() + denied()]
    log = Log()
    for kind in dict.fromkeys(kinds):
        log(1, kind, erased=True)
    return log.frames


def noise(seed: int, length: int = 60) -> list[dict[str, Any]]:
    """A log in no order that an engine would write: neither reducer may fall or differ."""
    chance = random.Random(seed)
    pool = [frame for frames in (story(), cancelled(), denied(), given_up_waiting()) for frame in frames]
    last = {"run.completed", "run.failed", "run.cancelled"}
    picked = [frame for frame in chance.choices(pool, k=length) if frame["type"] not in last]
    log = Log()
    log(0, "run.created", agent="support-agent", actor="user:7", channel="rest")
    for frame in picked:
        log(chance.choice([0, 0.001, 0.3, 4, 11, 90, 4_000]), frame["type"], **frame["data"])
    return log.frames


def all_logs() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "story", story()
    yield "asked", asked_to_a_person().frames
    yield "sent", approved(asked_to_a_person()).frames
    yield "cancelled", cancelled()
    yield "denied", denied()
    yield "given up waiting", given_up_waiting()
    yield "erased", erased()
    for seed in range(25):
        yield f"noise {seed}", noise(seed)
