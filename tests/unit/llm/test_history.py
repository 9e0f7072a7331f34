"""A conversation is rebuilt from the journal alone, and odd text never reaches PostgreSQL or a tool."""

import json
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)

from agentops.llm import CallResult, history
from agentops.llm.messages import calls_of, neutral, store, with_instructions
from agentops.sdk import InvalidArguments, Money, ToolContext, tool


def response(*parts: Any) -> ModelResponse:
    return ModelResponse(list(parts), model_name="m")


def two_calls() -> ModelResponse:
    return response(
        TextPart("Let me look."),
        ToolCallPart("look", '{"n": 1}', tool_call_id="a"),
        ToolCallPart("look", {"n": 2}, tool_call_id="b"),
    )


def test_results_answer_their_calls_in_order():
    stored = store(two_calls())
    rebuilt = history("Hello", [(stored, [CallResult({"found": 1}), CallResult({"error": {}}, ok=False)])])
    assert [type(message) for message in rebuilt] == [ModelRequest, ModelResponse, ModelRequest]
    first, second = rebuilt[2].parts
    assert isinstance(first, ToolReturnPart)
    assert isinstance(second, ToolReturnPart)
    assert (first.tool_call_id, first.content, first.outcome) == ("a", {"found": 1}, "success")
    assert (second.tool_call_id, second.content, second.outcome) == ("b", {"error": {}}, "failed")


def test_a_stored_turn_survives_json_and_comes_back_whole():
    stored = json.loads(json.dumps(store(two_calls())))
    assert stored["format"].startswith("pydantic-ai 2.")
    rebuilt = history("Hello", [(stored, [])])[1]
    assert calls_of(rebuilt) == calls_of(two_calls())  # type: ignore[arg-type]


def test_a_call_without_a_result_is_answered_as_interrupted():
    rebuilt = history("Hello", [(store(two_calls()), [CallResult({"found": 1})])])
    unanswered = rebuilt[2].parts[1]
    assert isinstance(unanswered, ToolReturnPart)
    assert unanswered.outcome == "failed"
    assert unanswered.content["error"]["code"] == "interrupted"


def test_more_results_than_calls_are_a_mistake():
    with pytest.raises(ValueError):
        history("Hello", [(store(response(TextPart("Hi"))), []), (store(two_calls()), [CallResult(1)] * 3)])


def test_instructions_ride_on_the_last_request_only():
    rebuilt = history("Hello", [(store(two_calls()), [CallResult(1), CallResult(2)])])
    instructed = with_instructions(rebuilt, "Be brief.")
    assert [getattr(message, "instructions", None) for message in instructed] == [None, None, "Be brief."]
    assert rebuilt[-1].instructions is None  # type: ignore[union-attr]
    with pytest.raises(ValueError):
        with_instructions(history("Hello", [(store(response(TextPart("Hi"))), [])]), "Be brief.")


def test_a_script_reads_the_same_conversation():
    told = neutral(
        history("Hello", [(store(two_calls()), [CallResult({"n": 1}), CallResult({"n": 2}, ok=False)])])
    )
    assert [(message.role, message.ok) for message in told] == [
        ("user", True),
        ("assistant", True),
        ("tool", True),
        ("tool", False),
    ]
    assert (told[3].tool, told[3].args, told[3].result) == ("look", {"n": 2}, {"n": 2})


@tool(reads=True)
def look(ctx: ToolContext, what: str) -> Money:
    """Look."""
    return Money(amount_minor=1, currency="EUR")


@pytest.mark.parametrize("odd", ["\x00", "\ud800", "\udc00\ud800"])
def test_odd_text_is_repaired_in_prose_and_refused_in_arguments(odd: str):
    stored = store(
        response(
            TextPart(f"a{odd}b"),
            ToolCallPart(f"look{odd}", {"what": f"A{odd}1"}, tool_call_id=f"id{odd}"),
            ToolCallPart("look", json.dumps({"what": f"A{odd}1"}, ensure_ascii=False), tool_call_id="x"),
        )
    )
    text = json.dumps(stored, ensure_ascii=False)
    text.encode()
    assert "\x00" not in text
    assert "\\u0000" not in text.replace("\\\\u0000", "")
    rebuilt = ModelMessagesTypeAdapter.validate_python([stored["message"]])[0]
    assert isinstance(rebuilt, ModelResponse)
    assert rebuilt.text == f"a{'�' * len(odd)}b"
    for call in calls_of(rebuilt):
        with pytest.raises(InvalidArguments):
            look.bind(call.args)


def test_a_character_split_in_two_is_put_together():
    stored = store(response(TextPart("\ud83d\ude00")))
    assert stored["message"]["parts"][0]["content"] == "\U0001f600"


def test_what_a_customer_or_tool_writes_is_repaired_too():
    rebuilt = history("a\x00b", [(store(two_calls()), [CallResult({"k\x00": ["\ud800"]}), CallResult(None)])])
    assert rebuilt[0].parts[0].content == "a�b"  # type: ignore[union-attr]
    assert rebuilt[2].parts[0].content == {"k�": ["�"]}  # type: ignore[union-attr]


@pytest.mark.parametrize("args", [None, "", "{", "[1]", '"text"'])
def test_arguments_that_are_no_object_are_kept_and_refused_later(args: Any):
    stored = store(response(ToolCallPart("look", args, tool_call_id="a")))
    call = calls_of(history("Hello", [(stored, [])])[1])[0]  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments):
        look.bind(call.args)
