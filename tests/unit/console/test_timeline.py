"""What a run's timeline says, from its events alone."""

import json
from itertools import pairwise
from typing import Any

import pytest

from agentops.console import timeline, timeline_view
from tests.unit.console import logs

SECOND = 1_000


def state_of(frames: list[dict[str, Any]]) -> timeline.State:
    return timeline.reduce(timeline.initial(), frames)


def end_of(state: timeline.State) -> int:
    return int(state["last"])


def test_a_log_in_pieces_gives_the_same_as_the_log_at_once() -> None:
    frames = logs.story()
    for place in range(len(frames)):
        stored = json.loads(json.dumps(state_of(frames[:place])))
        assert timeline.reduce(stored, frames[place:]) == state_of(frames)


def test_an_event_that_is_known_changes_nothing() -> None:
    frames = logs.story()
    once = state_of(frames)
    assert timeline.reduce(state_of(frames), frames[3:9]) == once


def test_a_run_waits_for_a_person_from_the_question_to_the_answer() -> None:
    log = logs.asked_to_a_person()
    waiting = state_of(log.frames)
    assert waiting["status"] == "waiting_for_approval"
    line = timeline_view.now_line(waiting, end_of(waiting))
    assert line["look"] == "waiting"
    assert line["key"] == "apr_1"
    assert "Refund €489.00 on order A-1002" in line["text"]
    decided = state_of(logs.approved(log).frames)
    assert decided["status"] == "running"
    assert decided["groups"]["apr_1"]["word"] == "approved by user:7"


def test_a_question_that_waits_is_told_however_few_rows_are_shown() -> None:
    log = logs.asked_to_a_person()
    log(0.1, "tool.started", call_id="turn-2/call-1", tool="lookup_order", attempt=1)
    log(0.2, "tool.completed", call_id="turn-2/call-1", tool="lookup_order", seconds=0.2, summary="delivered")
    state = state_of(log.frames)
    line = timeline_view.now_line(state, end_of(state))
    assert line["key"] == "apr_1"
    groups, left_out = timeline_view.shown_groups(state, 1)
    assert left_out == len(state["groups"]) - len(groups) > 0
    assert [group["key"] for group in groups][-1] == "turn-2/call-1"
    state["groups"] = {group["key"]: group for group in groups}
    assert timeline_view.now_line(state, end_of(state)) == line


def test_a_group_owns_its_present_state() -> None:
    groups = state_of(logs.story())["groups"]
    assert groups["turn-1/call-0"]["state"] == "ok"
    assert [look for _, _, look in groups["turn-1/call-0"]["tries"]] == ["failed", "ok"]
    assert groups["op_1"]["state"] == "ok"
    start, end, look = groups["op_1"]["tries"][0]
    assert (look, end) == ("unknown", groups["op_1"]["end"])
    assert end - start == 23_500  # from the sending until somebody knew


def test_unknown_has_its_own_look_and_its_own_sentence() -> None:
    log = logs.approved(logs.asked_to_a_person())
    log(10, "operation.unknown", **logs.OPERATION, **{"from": "executing", "reason": "timeout"})
    state = state_of(log.frames)
    assert state["groups"]["op_1"]["state"] == "unknown"
    line = timeline_view.now_line(state, end_of(state))
    assert line["look"] == "unknown"
    assert "may have happened" in line["text"]


def test_a_call_whose_operation_is_unknown_has_not_failed() -> None:
    state = state_of(logs.given_up_waiting())
    assert [
        (group["state"], group["word"]) for group in state["groups"].values() if group["lane"] == "tool"
    ] == [
        ("ok", "done"),
        ("unknown", "outcome unknown"),
    ]
    assert state["counts"]["failures"] == state_of(logs.asked_to_a_person().frames)["counts"]["failures"] + 1
    assert timeline_view.now_line(state, end_of(state))["look"] == "unknown"


def test_policy_says_what_it_said_once_each_time() -> None:
    groups = state_of(logs.story())["groups"].values()
    told = [group["title"] for group in groups if group["lane"] == "policy"]
    assert told == ["A rule asks people", "A rule allows it"]
    denied = state_of(logs.denied())["groups"].values()
    assert [group["title"] for group in denied if group["lane"] == "policy"] == ["A rule refuses it"]


def test_a_lost_lease_is_a_row_of_its_own() -> None:
    lost = [group for group in state_of(logs.story())["groups"].values() if group["lane"] == "lease"]
    assert [group["title"] for group in lost] == ["Lease lost; worker w-1 took over"]
    assert timeline_view.is_problem(lost[0])


def test_an_end_leaves_nothing_open() -> None:
    for frames in (logs.story(), logs.cancelled(), logs.denied()):
        state = state_of(frames)
        assert all(group["end"] for group in state["groups"].values())
        assert state["open_approvals"] == state["open_calls"] == 0


def test_a_turn_begins_after_what_came_before_it() -> None:
    """Whatever the worker's own clock says: it may count in whole seconds, or be wrong."""
    groups = list(state_of(logs.story())["groups"].values())
    for before, group in pairwise(groups):
        if group["lane"] == "model":
            assert group["start"] >= before["start"]


def test_texts_are_cut_and_made_visible() -> None:
    group = state_of(logs.denied())["groups"]["turn-1/call-0"]
    message = dict(group["lines"])["Message"]
    assert len(message) == timeline.TEXT_CHARS + 1
    assert "why=[U+202E]evil\ufffd <b>" in group["note"]


def test_idle_time_is_folded_and_labelled() -> None:
    state = state_of(logs.story())
    folded = timeline_view.view(state, end_of(state))
    assert [row["idle"] for row in folded["rows"] if row["idle"]] != []
    true_scale = timeline_view.view(state, end_of(state), folded=False)
    assert all(row["idle"] == "" for row in true_scale["rows"])
    first = next(row for row in folded["rows"] if row["key"] == "turn-1")
    flat = next(row for row in true_scale["rows"] if row["key"] == "turn-1")
    assert first["bars"][0]["width"] > flat["bars"][0]["width"]


@pytest.mark.parametrize("folded", [True, False])
def test_every_bar_lies_on_the_axis(folded: bool) -> None:
    for name, frames in logs.all_logs():
        state = state_of(frames)
        for row in timeline_view.view(state, end_of(state) + 90 * SECOND, folded=folded)["rows"]:
            for bar in row["bars"]:
                assert bar["x"] >= 0, name
                assert bar["width"] >= timeline_view.BAR_WIDTH, name
                assert bar["x"] + bar["width"] <= timeline_view.WIDTH, name


def test_a_clock_that_lags_behind_the_log_draws_nothing_backwards() -> None:
    state = state_of(logs.asked_to_a_person().frames)
    assert timeline_view.view(state, end_of(state) - 5_000) == timeline_view.view(state, end_of(state))


def test_time_that_people_took_is_counted_apart() -> None:
    state = state_of(logs.approved(logs.asked_to_a_person()).frames)
    figures = dict(timeline_view.figures(state, end_of(state), 500_000))
    assert figures["Waited for people"] == "4 min 54 s"
    assert figures["Failed attempts"] == "1"
    assert figures["Cost"] == "$0.0043 of $0.50"


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (2_345, "2.3 s"),
        (59_999, "59.9 s"),
        (314_000, "5 min 14 s"),
        (3_840_000, "1 h 04 min"),
    ],
)
def test_durations_are_short_words(millis: int, text: str) -> None:
    assert timeline_view.took(millis) == text
