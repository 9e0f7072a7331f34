"""A tool says what it is at import, and lets nothing through that its schema does not name."""

import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentops.sdk import (
    InvalidArguments,
    InvalidResult,
    Money,
    OrderId,
    ToolContext,
    ToolDefinitionError,
    tool,
)
from agentops.sdk.testing import Rehearsal
from agentops.sdk.tools import MAX_ARGUMENTS_CHARS, MAX_COMPLAINT_CHARS, MAX_RESULT_CHARS


class Found(BaseModel):
    id: str
    price: float = 0.0


@tool(reads=True)
def find(
    ctx: ToolContext,
    order_id: OrderId,
    amount: Money | None = None,
    how: Literal["fast", "slow"] = "fast",
    times: int = 1,
) -> Found:
    """Find an order."""
    return Found(id=f"{order_id} {how} {times}")


def test_the_schema_comes_from_annotations_and_docstring():
    assert find.name == "find"
    assert find.description == "Find an order."
    schema = find.input_schema
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["order_id"]
    assert schema["properties"]["order_id"]["pattern"] == "^[A-Za-z][A-Za-z0-9_-]{0,39}-[0-9]{1,12}$"
    assert schema["properties"]["how"] == {"default": "fast", "enum": ["fast", "slow"], "type": "string"}
    assert schema["$defs"]["Money"]["additionalProperties"] is False
    assert "ctx" not in schema["properties"]
    assert find.output_schema["required"] == ["id"]


def test_each_effect_is_declared_in_one_word():
    def plain(ctx: ToolContext) -> Found:
        """Do it."""
        return Found(id="1")

    assert tool(plain).effect == "undeclared"
    assert tool(reads=True)(plain).effect == "reads"
    assert tool(repeatable=True)(plain).effect == "repeatable"
    one = tool(proposes="refund.create")(plain)
    assert (one.effect, one.proposes) == ("proposes", ("refund.create",))
    several = tool(proposes=("refund.create", "mail.send"), timeout_seconds=5, expose=False, name="other")(
        plain
    )
    assert several.proposes == ("refund.create", "mail.send")
    assert (several.name, several.timeout_seconds, several.expose) == ("other", 5, False)


def test_bound_arguments_are_typed_and_complete():
    bound = find.bind('{"order_id": "A-1001", "amount": {"amount_minor": 2000, "currency": "EUR"}}')
    assert bound == {
        "order_id": "A-1001",
        "amount": Money(amount_minor=2000, currency="EUR"),
        "how": "fast",
        "times": 1,
    }
    assert find.bind({"order_id": "A-1001"})["amount"] is None
    assert find.dump(find(Rehearsal(), **find.bind({"order_id": "A-1", "times": 3}))) == {
        "id": "A-1 fast 3",
        "price": 0.0,
    }


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "null",
        "[]",
        '"A-1001"',
        "{",
        '{"order_id": "A-1001"} trailing',
        '{"order_id": "A-1001", "order_id": "A-1002"}',
        '{"order_id": "A-1001", "times": NaN}',
        '{"order_id": "A-1001", "times": "1"}',
        '{"order_id": "A-1001", "times": true}',
        '{"order_id": "A-1001", "times": 1.5}',
        '{"order_id": "A-1001", "times": ' + "9" * 5000 + "}",
        '{"order_id": "A-1001", "extra": 1}',
        '{"order_id": "A-1001\\n"}',
        '{"order_id": "A 1001"}',
        '{"order_id": null}',
        '{"order_id": "A-1001", "how": "FAST"}',
        '{"order_id": "A-1001", "amount": {"amount_minor": 0, "currency": "EUR"}}',
        '{"order_id": "A-1001", "amount": {"amount_minor": 1, "currency": "eur"}}',
        '{"order_id": "A-1001", "amount": {"amount_minor": 1, "currency": "EUR", "to": "me"}}',
        '{"order_id": "A-1001", "amount": {"amount_minor": 9007199254740992, "currency": "EUR"}}',
        '{"order_id": "A-1001\\u0000"}',
        '{"order_id": "\\ud800"}',
        '{"\\u0000": 1}',
        '{"a": ' * 4000 + "1" + "}" * 4000,
        json.dumps({"order_id": "A" * MAX_ARGUMENTS_CHARS}),
        {"order_id": b"A-1001"},
        {"order_id": "A-1001\x00"},
        {"order_id": {"nested": ["\udfff"]}},
    ],
)
def test_hostile_arguments_are_refused_with_a_complaint(raw: Any):
    with pytest.raises(InvalidArguments) as refused:
        find.bind(raw)
    assert 0 < len(refused.value.message) <= MAX_COMPLAINT_CHARS
    refused.value.message.encode()
    assert "\x00" not in refused.value.message


@tool(reads=True)
def measure(
    ctx: ToolContext,
    share: float = 1.0,
    note: str = "",
    deep: dict[str, dict[str, dict[str, int]]] | None = None,
) -> Found:
    """Measure."""
    return Found(id=note)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_no_argument(constant: str):
    with pytest.raises(InvalidArguments):
        measure.bind(f'{{"share": {constant}}}')


def test_free_text_is_bounded_before_it_is_read():
    measure.bind({"note": "x" * (MAX_ARGUMENTS_CHARS - 20)})
    with pytest.raises(InvalidArguments, match="send less"):
        measure.bind({"note": "x" * MAX_ARGUMENTS_CHARS})


def test_a_complaint_about_deep_places_is_bounded():
    deep = {f"{n}{'k' * 200}": {"k" * 200: {"k" * 200: "secret"}} for n in range(20)}
    with pytest.raises(InvalidArguments) as refused:
        measure.bind({"deep": deep})
    assert len(refused.value.message) == MAX_COMPLAINT_CHARS
    assert "secret" not in refused.value.message


def test_a_complaint_is_bounded_and_never_repeats_values():
    with pytest.raises(InvalidArguments) as refused:
        find.bind({"order_id": "secret-value"} | {f"{'k' * 500}{n}": 1 for n in range(80)})
    assert len(refused.value.message) <= MAX_COMPLAINT_CHARS
    assert "secret-value" not in refused.value.message
    assert "more" in refused.value.message


@given(st.text())
def test_no_text_makes_binding_fail_in_another_way(raw: str):
    with pytest.raises(InvalidArguments):
        find.bind(raw)


def test_a_result_is_bounded():
    find.dump(Found(id="x" * (MAX_RESULT_CHARS - 100), price=1))
    with pytest.raises(InvalidResult, match="ask for less"):
        find.dump(Found(id="x" * MAX_RESULT_CHARS, price=1))


def test_results_are_held_to_their_type_and_made_storable():
    assert find.dump(Found(id="a\x00b\ud83d\ude00\ud800", price=float("nan"))) == {
        "id": "a\ufffdb\U0001f600\ufffd",
        "price": None,
    }
    assert find.dump({"id": "A-1", "price": 1.5}) == {"id": "A-1", "price": 1.5}
    with pytest.raises(InvalidResult) as wrong:
        find.dump({"price": "secret"})
    assert "secret" not in wrong.value.message


def without_docstring(ctx: ToolContext) -> Found:
    return Found(id="1")


def without_context(order_id: str) -> Found:
    """Do it."""
    return Found(id=order_id)


def without_annotation(ctx: ToolContext, order_id) -> Found:  # type: ignore[no-untyped-def]
    """Do it."""
    return Found(id=order_id)


def without_return(ctx: ToolContext):  # type: ignore[no-untyped-def]
    """Do it."""


def returns_a_list(ctx: ToolContext) -> list[str]:
    """Do it."""
    return []


def takes_anything(ctx: ToolContext, **rest: str) -> Found:
    """Do it."""
    return Found(id="1")


def takes_a_taken_name(ctx: ToolContext, copy: str) -> Found:
    """Do it."""
    return Found(id=copy)


def takes_a_type_without_schema(ctx: ToolContext, what: type[Exception] | object) -> Found:
    """Do it."""
    return Found(id=str(what))


def names_an_unknown_type(ctx: ToolContext, what: "Nowhere") -> Found:  # type: ignore[name-defined]  # noqa: F821
    """Do it."""
    return Found(id=str(what))


async def is_async(ctx: ToolContext) -> Found:
    """Do it."""
    return Found(id="1")


@pytest.mark.parametrize(
    ("function", "next_step"),
    [
        (without_docstring, "write one"),
        (without_context, "add it"),
        (without_annotation, "annotate parameter order_id"),
        (without_return, "say which object"),
        (returns_a_list, "use a pydantic model"),
        (takes_anything, "spell out"),
        (takes_a_taken_name, "rename parameter copy"),
        (names_an_unknown_type, "at module level"),
        (is_async, "plain def"),
    ],
)
def test_a_tool_that_cannot_be_offered_fails_at_import_with_the_next_step(function: Any, next_step: str):
    with pytest.raises(ToolDefinitionError) as refused:
        tool(function)
    assert function.__name__ in refused.value.message
    assert next_step in refused.value.message


@pytest.mark.parametrize(
    "declared",
    [
        {"reads": True, "proposes": "refund.create"},
        {"reads": True, "repeatable": True},
        {"repeatable": True, "proposes": ("refund.create",)},
        {"proposes": "refund"},
        {"proposes": "Refund.Create"},
        {"timeout_seconds": 0},
        {"name": "Not-A-Name"},
    ],
)
def test_declarations_that_contradict_are_refused(declared: dict[str, Any]):
    def plain(ctx: ToolContext) -> Found:
        """Do it."""
        return Found(id="1")

    with pytest.raises(ToolDefinitionError):
        tool(**declared)(plain)


def test_the_digest_is_stable_and_changes_with_what_a_model_sees():
    def make(doc: str, maximum: int = 5, **declared: Any):
        def same(ctx: ToolContext, count: Annotated[int, Field(le=maximum)]) -> Found:
            return Found(id="1")

        same.__doc__ = doc
        return tool(**declared)(same)

    first = make("Do it.", reads=True)
    assert first.digest == make("Do it.", reads=True).digest
    others = [
        make("Do that.", reads=True),
        make("Do it.", maximum=6, reads=True),
        make("Do it.", repeatable=True),
        make("Do it.", reads=True, name="other"),
        make("Do it.", reads=True, timeout_seconds=5),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 6
    assert first.digest == "sha256:" + first.digest.removeprefix("sha256:").lower()


def test_a_result_of_a_step_is_bounded_as_that_of_a_tool():
    assert Rehearsal().step("look", lambda step: "x" * (MAX_RESULT_CHARS - 2))
    with pytest.raises(InvalidResult, match="step look is longer"):
        Rehearsal().step("look", lambda step: "x" * MAX_RESULT_CHARS)
