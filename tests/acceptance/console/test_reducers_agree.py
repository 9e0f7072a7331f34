"""One reducer, written twice: Python for the first paint, JavaScript for everything after it."""

import json
from typing import Any

from agentops.console import timeline, timeline_view
from agentops.console.timeline_words import WORDS
from tests.acceptance.console.conftest import Open
from tests.unit.console.logs import all_logs

BUDGET = 500_000
_IN_THE_BROWSER = """async ({ words, cases }) => {
    const { Timeline, isProblem } = await import("/static/console/timeline.js");
    return cases.map(({ frames, cut, later, budget }) => {
        const first = new Timeline(words);
        frames.slice(0, cut).forEach((frame) => first.take(frame));
        const timeline = new Timeline(words, JSON.parse(JSON.stringify(first.state)));
        frames.slice(cut).forEach((frame) => timeline.take(frame));
        const now = timeline.state.last + later;
        return {
            state: timeline.state,
            folded: timeline.view(now),
            flat: timeline.view(now, false),
            figures: timeline.figures(now, budget),
            now: timeline.nowLine(),
            answer: timeline.answer(),
            status: timeline.statusLabel(),
            problems: Object.values(timeline.state.groups).map(isProblem),
        };
    });
}"""


def in_python(frames: list[dict[str, Any]], later: int) -> dict[str, Any]:
    state = timeline.reduce(timeline.initial(), frames)
    now = state["last"] + later
    return {
        "state": state,
        "folded": timeline_view.view(state, now),
        "flat": timeline_view.view(state, now, folded=False),
        "figures": timeline_view.figures(state, now, BUDGET),
        "now": timeline_view.now_line(state, now),
        "answer": timeline_view.answer(state),
        "status": timeline_view.status_label(state),
        "problems": [timeline_view.is_problem(group) for group in state["groups"].values()],
    }


def test_both_reducers_say_the_same_of_every_log(visit: Open) -> None:
    names, cases = [], []
    for name, frames in all_logs():
        for cut in {0, len(frames) // 2, len(frames)}:
            for later in (0, 12_345):
                names.append(f"{name}, cut at {cut}, {later} ms later")
                cases.append({"frames": frames, "cut": cut, "later": later, "budget": BUDGET})
    page = visit().open("/admin/login/")
    answers = page.evaluate(_IN_THE_BROWSER, {"words": WORDS, "cases": cases})
    for name, case, answer in zip(names, cases, answers, strict=True):
        expected = json.loads(json.dumps(in_python(case["frames"], case["later"])))
        assert list(answer["state"]["groups"]) == list(expected["state"]["groups"]), name
        assert answer == expected, name


def test_money_is_written_the_same_in_both(visit: Open) -> None:
    from operations.sentences import money

    sums = [
        (minor, unit)
        for minor in (0, 5, 99_999, 123_456_789, -2_000)
        for unit in ("EUR", "JPY", "KWD", "CHF")
    ]
    page = visit().open("/admin/login/")
    told = page.evaluate(
        """async (sums) => {
            const { money } = await import("/static/console/timeline.js");
            return sums.map(([minor, unit]) => money(minor, unit));
        }""",
        [list(one) for one in sums],
    )
    assert told == [money(*one) for one in sums]
