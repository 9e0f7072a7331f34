"""What of a timeline's state is seen at a given moment: bars on one axis with idle time folded, the line of now, figures.

`static/console/timeline.js` computes the same; a test holds the two equal. Whole milliseconds and whole units only.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from .timeline import Group, State, dollars
from .timeline_words import WORDS

WIDTH = 1_000  # units of the axis
FOLD_MS = 10_000  # idle time longer than this is folded
FOLD_WIDTH = 36
FOLDS_WIDTH = 360  # all folds together
BAR_WIDTH = 4  # of a moment


def took(millis: int) -> str:
    """`180 ms`, `2.3 s`, `5 min 14 s`, `1 h 04 min`."""
    if millis < 1_000:
        return f"{max(0, millis)} ms"
    if millis < 60_000:
        return f"{millis // 1_000}.{millis // 100 % 10} s"
    minutes = millis // 60_000
    if minutes < 60:
        return f"{minutes} min {millis // 1_000 % 60:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def clock(millis: int) -> str:
    return f"{datetime.fromtimestamp(millis // 1000, UTC):%H:%M:%S} UTC"


def spans(group: Group, now: int) -> list[list[Any]]:
    """The bars of a group as [start, end, look]: its wait hatched, each try of its own, else the whole."""
    end = group["end"] or now
    tries: list[list[Any]] = group["tries"]
    if tries:
        first = tries[0][0]
        waited = [[group["start"], first, "queue"]] if first > group["start"] else []
        return waited + [[start, stop or now, look] for start, stop, look in tries]
    look = "queue" if group["queued"] else group["state"]
    return [[group["start"], max(end, group["start"]), look]]


class Axis:
    """Places moments on 0..WIDTH; a stretch in which nothing is under way is folded to a fixed width."""

    def __init__(self, state: State, now: int, *, folded: bool) -> None:
        changes: dict[int, list[int]] = {}  # moment -> [work begun less ended, waits begun less ended]

        def mark(moment: int, work: int, waits: int) -> None:
            entry = changes.setdefault(moment, [0, 0])
            entry[0] += work
            entry[1] += waits

        mark(state["created"], 0, 0)
        mark(state["finished"] or now, 0, 0)
        for group in state["groups"].values():
            waits = group["lane"] in ("approval", "wait")
            for start, end, look in spans(group, now):
                is_work = look not in ("queue", "waiting", "unknown") and not waits
                mark(start, int(is_work), int(waits))
                mark(end, -int(is_work), -int(waits))
        moments = sorted(changes)
        self.folds: list[tuple[int, int]] = []  # (end, milliseconds)
        lengths: list[int] = []
        work = waiting = 0
        for start, end in pairwise(moments):
            work += changes[start][0]
            waiting += changes[start][1]
            idle = folded and end - start > FOLD_MS and (waiting > 0 or work == 0)
            lengths.append(-1 if idle else end - start)
            if idle:
                self.folds.append((end, end - start))
        fold = min(FOLD_WIDTH, FOLDS_WIDTH // max(1, len(self.folds)))
        room = WIDTH - fold * len(self.folds)
        total = max(1, sum(length for length in lengths if length >= 0))
        self._places = {moments[0]: 0}
        folded_so_far = done = 0
        for moment, length in zip(moments[1:], lengths, strict=True):
            folded_so_far += length < 0
            done += max(0, length)
            self._places[moment] = folded_so_far * fold + done * room // total

    def bar(self, start: int, end: int) -> tuple[int, int]:
        """x and width of a bar; a moment still has a width."""
        x, stop = self._places[start], self._places[end]
        width = max(BAR_WIDTH, stop - x)
        return min(x, WIDTH - width), width


def view(state: State, now: int, *, folded: bool = True) -> dict[str, Any]:
    """{rows: [{key, offset, took, bars: [{x, width, look}], idle}], tail}: `idle` stands before its row."""
    now = max(now, state["last"])  # a clock that lags behind the log would draw backwards
    axis = Axis(state, now, folded=folded)
    folds = list(axis.folds)
    rows = []
    for group in state["groups"].values():
        idle = 0
        while folds and folds[0][0] <= group["start"]:
            idle += folds.pop(0)[1]
        length = (group["end"] or now) - group["start"]
        bars = []
        for start, end, look in spans(group, now):
            x, width = axis.bar(start, end)
            bars.append({"x": x, "width": width, "look": look})
        rows.append(
            {
                "key": group["key"],
                "offset": f"+{_offset(group['start'] - state['created'])}",
                "took": took(length) if length > 0 else "",
                "bars": bars,
                "idle": _idle(idle),
            }
        )
    return {"rows": rows, "tail": _idle(sum(millis for _, millis in folds))}


def _offset(millis: int) -> str:
    return f"{millis // 1_000}.{millis // 100 % 10} s" if 0 <= millis < 60_000 else took(millis)


def _idle(millis: int) -> str:
    return WORDS["idle"]["idle"].format(time=took(millis)) if millis else ""


def figures(state: State, now: int, budget_microusd: int) -> list[list[str]]:
    """[label, value] of the head's figures."""
    counts, now = state["counts"], max(now, state["last"])
    wall = (state["finished"] or now) - state["created"]
    waited = state["waited"] + (now - state["waiting_since"] if state["waiting_since"] else 0)
    cost = dollars(counts["cost_microusd"])
    return [
        ["Wall time", took(wall)],
        ["Waited for people", took(waited) if waited else "none"],
        ["Model calls", str(counts["turns"])],
        ["Tool calls", str(counts["calls"])],
        ["Failed attempts", str(counts["failures"])],
        ["Cost", f"{cost} of {dollars(budget_microusd)}" if budget_microusd else cost],
    ]


def now_line(state: State, now: int) -> dict[str, str]:
    """{look, text, key}: what the run does at this moment; `key` names the group that it speaks of, or ""."""
    words, status = WORDS["now"], state["status"]
    if state["finished"]:
        look = {"completed": "ok", "failed": "failed"}.get(status, "ended")
        length = took(state["finished"] - state["created"])
        return _now(look, words[f"run.{status}"].format(took=length, why=state["why"]), "")
    open_groups = [group for group in state["groups"].values() if not group["end"]]
    unknown = next((group for group in open_groups if group["state"] == "unknown"), None)
    if unknown is not None:
        is_escalated = unknown["word"] == WORDS["word"]["escalated"]
        text = words["escalated" if is_escalated else "unknown"].format(what=unknown["title"])
        return _now("unknown", text, unknown["key"])
    if state["ending"]:
        return _now("active", words["ending"], "")
    if status == "waiting_for_approval":
        asked = next(group for group in open_groups if group["lane"] == "approval")
        text = words["waiting"].format(since=clock(asked["start"]), what=asked["note"])
        return _now("waiting", text, asked["key"])
    return _busy(state, open_groups)


def _busy(state: State, open_groups: list[Group]) -> dict[str, str]:
    words = WORDS["now"]
    for group in open_groups:
        if group["lane"] == "operation" and group["state"] == "active":
            sending = bool(group["tries"]) and group["tries"][-1][1] == 0
            text = words["sending" if sending else "held"].format(what=group["title"], word=group["word"])
            return _now("active", text, group["key"])
    for group in open_groups:
        if group["lane"] == "wait":
            return _now("waiting", words["paused"].format(since=clock(group["start"])), group["key"])
    for group in open_groups:
        if group["lane"] in ("model", "tool"):
            key = "writing" if group["lane"] == "model" else "tool"
            return _now("active", words[key].format(what=group["title"]), group["key"])
    if not state["started"]:
        return _now("waiting", words["queued"].format(since=clock(state["created"])), "")
    return _now("active", words["model"], "")


def _now(look: str, text: str, key: str) -> dict[str, str]:
    return {"look": look, "text": text, "key": key}


def shown_groups(state: State, limit: int) -> tuple[list[Group], int]:
    """The newest `limit` groups, with each open question and unknown outcome before them; how many are left out."""
    groups = list(state["groups"].values())
    waiting = ("approval", "operation")  # the page's first line speaks of them
    older = [group for group in groups[:-limit] if group["lane"] in waiting and not group["end"]]
    shown = older + groups[-limit:]
    return shown, len(groups) - len(shown)


def is_problem(group: Mapping[str, Any]) -> bool:
    """Whether the filter "problems" shows the group: it failed, is unknown, was recovered, or one of its tries failed."""
    looks = {group["state"], *(look for _, _, look in group["tries"])}
    return bool(looks & {"failed", "unknown", "warn"})


def answer(state: State) -> str:
    """What the agent said last; "" before its first words."""
    said = [group["text"] for group in state["groups"].values() if group["lane"] == "model" and group["text"]]
    return said[-1] if said else ""


def status_label(state: State) -> str:
    if state["ending"] and not state["finished"]:
        return WORDS["status"]["ending"]
    return WORDS["status"][state["status"]]
