"""The pure stepper: from each shape of a journal, what comes next."""

import pytest

from agentops.engine.stepper import (
    AskModel,
    Call,
    End,
    Journal,
    Park,
    RunTools,
    advance,
    calls_of,
    results_of,
    turns_done,
)
from agentops.llm.turns import CallResult

LOOK = {"name": "look", "args": '{"id": 1}'}
DONE = {"ok": True, "result": {"n": 1}}


def turn(*calls, text=""):
    return {"response": {}, "text": text, "calls": list(calls)}


def journal(*turns, **more) -> Journal:
    """Turns one after the other; every call of all but the last is done."""
    steps = {f"turn-{n}": each for n, each in enumerate(turns, 1)}
    for n, each in enumerate(turns[:-1], 1):
        steps |= {f"turn-{n}/call-{place}": DONE for place in range(len(each["calls"]))}
    return Journal(steps=steps | more.pop("done", {}), **more)


def test_a_new_run_asks_the_model():
    assert advance(Journal(steps={})) == AskModel(1, "turn-1")


def test_a_turn_without_calls_is_the_answer():
    assert advance(journal(turn(LOOK), turn(text="There."))) == End(text="There.")


def test_the_calls_of_a_turn_are_due_together():
    assert advance(journal(turn(LOOK, LOOK))) == RunTools(
        [Call("turn-1/call-0", "look", '{"id": 1}'), Call("turn-1/call-1", "look", '{"id": 1}')]
    )


def test_only_what_is_not_done_and_does_not_wait_is_due():
    found = advance(
        journal(
            turn(LOOK, LOOK, LOOK),
            done={"turn-1/call-1": DONE},
            waits={"turn-1/call-0": frozenset({"approval"})},
        )
    )
    assert isinstance(found, RunTools)
    assert [call.key for call in found.calls] == ["turn-1/call-2"]


def test_a_turn_whose_calls_all_wait_parks_on_all_of_it():
    waits = {"turn-1/call-0": frozenset({"approval"}), "turn-1/call-2": frozenset({"operation", "timer"})}
    found = advance(journal(turn(LOOK, LOOK, LOOK), done={"turn-1/call-1": DONE}, waits=waits))
    assert found == Park(frozenset({"approval", "operation", "timer"}))


def test_when_all_calls_are_done_the_model_is_asked_again():
    assert advance(journal(turn(LOOK), done={"turn-1/call-0": DONE})) == AskModel(2, "turn-2")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"max_steps": 2, "steps_taken": 2}, "step_limit"),
        ({"budget_microusd": 10, "spent_microusd": 10}, "budget"),
        ({"past_deadline": True}, "deadline"),
    ],
)
def test_a_limit_ends_it_before_the_next_turn_and_never_takes_an_answer_away(more, code):
    found = advance(journal(turn(LOOK), done={"turn-1/call-0": DONE}, **more))
    assert isinstance(found, End)
    assert (found.code, bool(found.detail)) == (code, True)
    assert advance(journal(turn(text="There."), **more)) == End(text="There.")


def test_without_a_budget_nothing_is_too_dear():
    assert isinstance(advance(Journal(steps={}, budget_microusd=0, spent_microusd=10**9)), AskModel)


def test_after_the_deadline_no_call_begins_and_a_waiting_one_parks_first():
    assert advance(journal(turn(LOOK), past_deadline=True)) == advance(Journal(steps={}, past_deadline=True))
    waits = {"turn-1/call-0": frozenset({"approval"})}
    assert advance(journal(turn(LOOK), waits=waits, past_deadline=True)) == Park(frozenset({"approval"}))


def test_the_limit_of_steps_lets_the_calls_of_the_last_turn_run():
    assert isinstance(advance(journal(turn(LOOK), max_steps=1, steps_taken=1)), RunTools)


def test_the_very_same_call_three_times_in_a_row_waits_for_an_operator():
    same = [turn(LOOK)] * 3
    parked = advance(journal(*same, done={"turn-3/call-0": DONE}))
    assert isinstance(parked, Park)
    assert (parked.kinds, parked.code) == (frozenset({"operator"}), "repeated_call")
    assert isinstance(advance(journal(*same)), RunTools)
    assert advance(journal(*same[:2], done={"turn-2/call-0": DONE})) == AskModel(3, "turn-3")


def test_the_same_arguments_in_another_spelling_are_the_same():
    spelled = ['{"id": 1, "of": "x"}', '{"of":"x","id":1}', '{ "id" : 1, "of": "\\u0078" }']
    turns = [turn({"name": "look", "args": args}) for args in spelled]
    assert advance(journal(*turns, done={"turn-3/call-0": DONE})).code == "repeated_call"
    broken = [turn({"name": "look", "args": "{"})] * 3
    assert advance(journal(*broken, done={"turn-3/call-0": DONE})).code == "repeated_call"


@pytest.mark.parametrize(
    "other", [{"name": "look", "args": '{"id": 2}'}, {"name": "seek", "args": '{"id": 1}'}]
)
def test_another_tool_or_other_arguments_in_between_break_the_row(other):
    turns = [turn(LOOK), turn(LOOK), turn(other), turn(LOOK), turn(LOOK)]
    assert advance(journal(*turns, done={"turn-5/call-0": DONE})) == AskModel(6, "turn-6")


def test_results_are_told_in_the_order_of_the_calls():
    steps = {
        "turn-1": turn(LOOK, LOOK),
        "turn-1/call-1": {"ok": False, "result": "no"},
        "turn-1/call-0": DONE,
    }
    assert results_of(steps, 1) == [CallResult({"n": 1}), CallResult("no", ok=False)]
    assert [call.key for call in calls_of(steps, 1)] == ["turn-1/call-0", "turn-1/call-1"]


def test_a_turn_counts_only_behind_the_ones_before_it():
    assert turns_done({"turn-1": {}, "turn-3": {}}) == 1
