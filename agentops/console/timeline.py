"""A run's timeline, computed from its events and nothing else.

The state is plain JSON. `static/console/timeline.js` computes the very same from the same events; a test holds the two
equal, so the first paint and everything after it come from one rule. Times are whole milliseconds since 1970.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from operations.sentences import money

from .plain import arguments_line, plain
from .timeline_words import WORDS

type State = dict[str, Any]
type Group = dict[str, Any]
type Frame = Mapping[str, Any]  # {seq, type, at, data}, as in /v1/runs/{id}/events

TEXT_CHARS = 4_000
_CLOSED = frozenset({"ok", "failed", "ended"})


def initial() -> State:
    return {
        "seq": 0,
        "last": 0,
        "before": 0,
        "status": "queued",
        "ending": "",
        "why": "",
        "created": 0,
        "started": 0,
        "finished": 0,
        "waiting_since": 0,
        "waited": 0,
        "open_approvals": 0,
        "open_calls": 0,
        "counts": {"turns": 0, "calls": 0, "failures": 0, "input": 0, "output": 0, "cost_microusd": 0},
        "groups": {},
    }


def reduce(state: State, frames: Iterable[Frame]) -> State:
    """`state` brought forward by events in order; one that is known already changes nothing."""
    for frame in frames:
        if frame["seq"] <= state["seq"]:
            continue
        state["seq"] = frame["seq"]
        at = _millis(frame["at"])
        state["before"] = state["last"]
        state["last"] = max(state["last"], at)
        head, _, tail = frame["type"].partition(".")
        handle = _HANDLERS.get(head)
        if handle is not None:
            handle(state, tail, at, frame["data"])
        _settle_status(state)
    return state


def _millis(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 1000 + moment.microsecond // 1000


def _settle_status(state: State) -> None:
    """Waiting for a person: an approval is open and no other work is under way."""
    if state["status"] in ("running", "waiting_for_approval") and state["started"]:
        waits = state["open_approvals"] > 0 and state["open_calls"] <= state["open_approvals"]
        state["status"] = "waiting_for_approval" if waits and not state["ending"] else "running"


def _group(state: State, key: str, lane: str, at: int, title: str) -> Group:
    """The group with that key, opened now where it is new."""
    groups: dict[str, Group] = state["groups"]
    if key not in groups:
        groups[key] = {
            "key": key,
            "lane": lane,
            "title": title,
            "state": "active",
            "word": "",
            "start": at,
            "end": 0,
            "queued": 0,
            "tries": [],
            "note": "",
            "text": "",
            "lines": [],
        }
    return groups[key]


def _put(group: Group, state: str, word: str) -> None:
    group["state"] = state
    group["word"] = word


def _close(group: Group, at: int, state: str, word: str) -> None:
    _put(group, state, word)
    group["end"] = at
    # A try whose outcome was unknown keeps that look: its bar says for how long nobody knew.
    was_unknown = bool(group["tries"]) and group["tries"][-1][2] == "unknown"
    _end_try(group, at, "unknown" if was_unknown else state)


def _begin_try(group: Group, at: int) -> None:
    group["end"] = 0
    _end_try(group, at, "ended")
    group["tries"].append([at, 0, "active"])


def _end_try(group: Group, at: int, state: str) -> None:
    if group["tries"] and group["tries"][-1][1] == 0:
        group["tries"][-1][1] = at
        group["tries"][-1][2] = state


def _line(group: Group, label: str, value: object) -> None:
    """One line of the details; a second one of the same label replaces the first."""
    if value in (None, ""):
        return
    name, text = WORDS["line"][label], _short(value)
    group["lines"] = [line for line in group["lines"] if line[0] != name] + [[name, text]]


def _short(value: object) -> str:
    """A value as text that is safe to look at, cut where it is endless."""
    text = plain(value if isinstance(value, str) else str(value))
    return text if len(text) <= TEXT_CHARS else text[:TEXT_CHARS] + "…"


def _title(key: str, **values: str) -> str:
    return WORDS["title"][key].format(**{name: _short(value) for name, value in values.items()})


def _word(key: str, **values: object) -> str:
    return WORDS["word"][key].format(**{name: _short(value) for name, value in values.items()})


# ---- Run ----


def _run(state: State, what: str, at: int, data: Frame) -> None:
    match what:
        case "created":
            state["created"] = at
            group = _group(state, "run", "run", at, WORDS["title"]["queued"])
            _put(group, "active", WORDS["word"]["queued"])
            for label in ("actor", "agent", "channel"):
                _line(group, label, data.get(label))
        case "started":
            state["started"] = at
            state["status"] = "running"
            group = _group(state, "run", "run", at, "")
            group["title"] = _title("started", worker=data.get("worker", ""))
            group["queued"] = group["start"]
            _line(group, "worker", data.get("worker"))
            _line(group, "release", data.get("release"))
            _close(group, at, "ok", WORDS["word"]["started"])
        case "paused":
            group = _group(state, f"pause-{state['seq']}", "wait", at, WORDS["title"]["paused"])
            _put(group, "waiting", WORDS["word"]["paused"])
            group["note"] = _short(data.get("reason") or data.get("detail") or "")
        case "resumed":
            _resumed(state, at, data)
        case "cancel_requested":
            state["ending"] = "cancelled"
            group = _group(state, "cancel", "run", at, _title("cancel", actor=data.get("actor", "")))
            _put(group, "active", WORDS["word"]["ending"])
            group["note"] = _short(data.get("reason", ""))
        case "completed" | "failed" | "cancelled":
            _ended(state, what, at, data)


def _resumed(state: State, at: int, data: Frame) -> None:
    state["status"] = "running"
    why = data.get("why", "")
    for group in state["groups"].values():
        if group["lane"] == "wait" and not group["end"]:
            _close(group, at, "ended", WORDS["word"]["resumed"])
    if why in ("lease_lost", "release"):
        title = _title(why, worker=data.get("worker", ""))
        group = _group(state, f"lease-{state['seq']}", "lease", at, title)
        _close(group, at, "warn", WORDS["word"]["recovered"])


def _ended(state: State, status: str, at: int, data: Frame) -> None:
    state["status"] = status
    state["finished"] = at
    state["why"] = _short(data.get("detail") or data.get("code") or "")
    for group in state["groups"].values():
        if not group["end"]:
            _close(group, at, "ended", WORDS["word"]["stopped"])
    state["open_calls"] = 0
    _approvals_closed(state, at, state["open_approvals"])
    group = _group(state, "end", "run", at, WORDS["title"][f"run.{status}"])
    look = {"completed": "ok", "failed": "failed"}.get(status, "ended")
    _close(group, at, look, WORDS["word"][status])
    group["note"] = state["why"]
    _line(group, "code", data.get("code"))
    _line(group, "actor", data.get("actor"))


# ---- Model ----


def _assistant(state: State, what: str, at: int, data: Frame) -> None:
    turn = data.get("turn", 0)
    # A turn begins when what came before it is done, whatever the worker's own clock says.
    group = _group(state, f"turn-{turn}", "model", state["before"] or at, _title("turn", turn=str(turn)))
    if what == "delta":
        if not group["tries"]:
            _begin_try(group, at)
        _put(group, "active", WORDS["word"]["writing"])
        kept = group["text"] if data.get("offset") else ""  # a new attempt begins at 0
        group["text"] = _short(kept + (data.get("text") or ""))
        return
    counts, tokens = state["counts"], data.get("tokens") or {}
    counts["turns"] += 1
    counts["input"] += tokens.get("input", 0)
    counts["output"] += tokens.get("output", 0)
    counts["cost_microusd"] += data.get("cost_microusd") or 0
    group["text"] = _short(data.get("text") or "")
    if data.get("started_at"):
        group["start"] = max(group["start"], min(_millis(data["started_at"]), at))
    group["tries"] = [[group["start"], at, "ok"]]
    _close(group, at, "ok", WORDS["word"]["done"])
    _line(group, "model", data.get("model"))
    if tokens:
        values = {"input": str(tokens.get("input", 0)), "output": str(tokens.get("output", 0))}
        _line(group, "tokens", WORDS["line"]["tokens_value"].format(**values))
    if data.get("cost_microusd"):
        _line(group, "cost", dollars(data["cost_microusd"]))


def dollars(microusd: int) -> str:
    """`$0.50`, or to the hundredth of a cent where there is less than a cent: `$0.0313`. Rounded down."""
    if microusd % 10_000 == 0:
        return f"${microusd // 1_000_000}.{microusd // 10_000 % 100:02}"
    return f"${microusd // 1_000_000}.{microusd // 100 % 10_000:04}"


# ---- Tools ----


def _tool(state: State, what: str, at: int, data: Frame) -> None:
    key = data.get("call_id") or f"call-{state['seq']}"
    is_new = key not in state["groups"]
    group = _group(state, key, "tool", at, _short(data.get("tool", "")))
    was_open = not is_new and not group["end"]
    match what:
        case "requested":
            state["counts"]["calls"] += 1
            group["queued"] = at
            group["note"] = _short(arguments_line(data.get("arguments")))
            _line(group, "arguments", group["note"])
            _put(group, "active", WORDS["word"]["asked"])
        case "started":
            _begin_try(group, at)
            _put(group, "active", WORDS["word"]["running"])
        case "progress":
            _line(group, "progress", data.get("text"))
        case "completed":
            _close(group, at, "ok", WORDS["word"]["done"])
            _line(group, "result", data.get("summary"))
        case "failed":
            # The operation beneath has counted it: nobody knows that anything failed.
            unknown = data.get("code") == "outcome_unknown"
            state["counts"]["failures"] += not unknown
            look = "unknown" if unknown else "failed"
            _close(group, at, look, WORDS["word"][look])
            _line(group, "code", data.get("code"))
            _line(group, "message", data.get("message"))
    state["open_calls"] += (not group["end"]) - was_open


# ---- Approvals ----


def _approval(state: State, what: str, at: int, data: Frame) -> None:
    operation_id = data.get("operation_id", "")
    key = data.get("approval_id") or f"approval-{state['seq']}"
    if what == "requested":
        _policy(state, operation_id, at, "ask", "person", "")
    was_open = key in state["groups"] and not state["groups"][key]["end"]
    group = _group(state, key, "approval", at, WORDS["title"]["approval"])
    group["note"] = _name_of(state, operation_id)
    if what == "requested":
        group["end"] = 0
        _put(group, "waiting", WORDS["word"]["waiting"])
        _line(group, "expires", data.get("expires_at"))
        if not was_open:
            state["waiting_since"] = state["waiting_since"] or at
            state["open_approvals"] += 1
        return
    status = data.get("status", "")
    look = {"approved": "ok", "rejected": "failed"}.get(status, "ended")
    _close(group, at, look, _word(status, by=data.get("by", "")) if status in WORDS["word"] else status)
    _approvals_closed(state, at, 1 if was_open else 0)


def _approvals_closed(state: State, at: int, count: int) -> None:
    if count and state["open_approvals"]:
        state["open_approvals"] = max(0, state["open_approvals"] - count)
        if state["open_approvals"] == 0:
            state["waited"] += at - state["waiting_since"]
            state["waiting_since"] = 0


def _policy(state: State, operation_id: str, at: int, verdict: str, word: str, reason: str) -> None:
    """What policy said about a proposal, once each time that it was asked."""
    key = f"policy-{state['seq']}"
    group = _group(state, key, "policy", at, WORDS["title"][f"policy.{verdict}"])
    group["note"] = _name_of(state, operation_id)
    _close(group, at, {"allow": "ok", "deny": "failed"}.get(verdict, "ended"), WORDS["word"][word])
    _line(group, "reason", reason)


def _name_of(state: State, operation_id: str) -> str:
    group = state["groups"].get(operation_id)
    return group["title"] if group else WORDS["title"]["unnamed"]


# ---- Operations ----

_OPERATION_LOOKS = {
    "accepted": ("active", "accepted"),
    "unknown": ("unknown", "unknown"),
    "escalated": ("unknown", "escalated"),
    "succeeded": ("ok", "succeeded"),
    "failed": ("failed", "failed"),
    "rejected": ("ended", "refused"),
    "cancelled": ("ended", "cancelled"),
    "expired": ("ended", "expired"),
    "reversed": ("failed", "reversed"),
}


def _operation(state: State, what: str, at: int, data: Frame) -> None:
    key = data.get("operation_id") or f"operation-{state['seq']}"
    is_new = key not in state["groups"]
    group = _group(state, key, "operation", at, WORDS["title"]["unnamed"])
    if is_new and data.get("action"):
        group["title"] = _action(data)
    before, reason = data.get("from") or "", data.get("reason") or ""
    if what != "succeeded":
        _line(group, "reason", reason)
    _line(group, "reference", data.get("provider_ref"))
    match what:
        case "proposed":
            _end_try(group, at, "ended")
            group["end"] = 0
            _put(group, "waiting", WORDS["word"]["proposed"])
        case "approved" if before in ("executing", "unknown", "escalated"):
            _end_try(group, at, "failed")
            state["counts"]["failures"] += 1
            _put(group, "active", WORDS["word"]["again"])
        case "approved":
            if reason != "approved":  # a person's yes has a group of its own
                _policy(state, key, at, "allow", "allowed", reason)
            _put(group, "active", WORDS["word"]["allowed"])
        case "dispatched":
            _begin_try(group, at)
            _put(group, "active", _word("sent", attempt=data.get("attempt") or len(group["tries"])))
        case _ if what in _OPERATION_LOOKS:
            _operation_moved(state, group, what, at, reason)


def _operation_moved(state: State, group: Group, what: str, at: int, reason: str) -> None:
    look, word = _OPERATION_LOOKS[what]
    if what == "rejected" and reason not in ("rejected", "") and not group["tries"]:
        _policy(state, group["key"], at, "deny", "refused", reason)
    if what == "unknown":
        state["counts"]["failures"] += 1
        if group["tries"]:
            group["tries"][-1][1:] = [0, "unknown"]
    if look in _CLOSED:
        _close(group, at, look, WORDS["word"][word])
    else:
        group["end"] = 0
        _put(group, look, WORDS["word"][word])


def _action(data: Frame) -> str:
    """`Refund €489.00 on order A-1002`."""
    words = WORDS["action"]
    kind, _, name = str(data.get("target", "")).partition(":")
    target = kind.replace("_", " ") if name in ("", kind) else f"{kind.replace('_', ' ')} {name}"
    amount = data.get("amount_minor")
    shown = "" if amount is None else f" {money(amount, data.get('currency') or '')}"
    action = data.get("action", "")
    return words.get(action, words[""]).format(action=_short(action), amount=shown, target=_short(target))


_HANDLERS: Mapping[str, Callable[[State, str, int, Frame], None]] = {
    "run": _run,
    "assistant": _assistant,
    "tool": _tool,
    "approval": _approval,
    "operation": _operation,
}
