"""The offline model goes through the same door as a real one: streamed, stored, read back."""

from collections.abc import Sequence

import pytest
from pydantic import BaseModel

from agentops import llm
from agentops.llm import CallResult, ModelTerminal, ModelUnavailable, TurnResult, TurnSettings
from agentops.llm.wire import MAX_CALLS
from agentops.sdk import Call, Message, Reply, ToolContext, tool


class Found(BaseModel):
    n: int


@tool(reads=True)
def look(ctx: ToolContext, n: int = 1) -> Found:
    """Look."""
    return Found(n=n)


def script(conversation: Sequence[Message]) -> Reply:
    results = [message for message in conversation if message.role == "tool"]
    if not results:
        return Reply("Let me look twice.", (Call("look", {"n": 1}), Call("look", {"n": 2})))
    return Reply(" ".join(f"{message.result['n']}:{message.ok}" for message in results))


async def ask(offline=script, turns=(), on_delta=lambda piece: None) -> TurnResult:
    return await llm.turn(
        "offline",
        instructions="Look.",
        history=llm.history("Hello", turns),
        tools=[look],
        offline=offline,
        settings=TurnSettings(),
        on_delta=on_delta,
    )


async def test_words_and_calls_come_in_one_turn():
    pieces: list[str] = []
    first = await ask(on_delta=pieces.append)
    assert first.text == "Let me look twice." == "".join(pieces)
    assert len(pieces) > 1
    assert [(call.name, look.bind(call.args)) for call in first.calls] == [
        ("look", {"n": 1}),
        ("look", {"n": 2}),
    ]
    assert (first.model, first.cost_microusd, first.input_tokens, first.output_tokens) == ("offline", 0, 0, 0)


async def test_the_next_turn_reads_the_results_from_the_journal():
    first = await ask()
    second = await ask(turns=[(first.response, [CallResult({"n": 1}), CallResult({"n": 2}, ok=False)])])
    assert second.text == "1:True 2:False"
    assert second.calls == ()


async def test_a_turn_asked_again_is_the_same_turn():
    first, again = await ask(), await ask()
    assert first.calls == again.calls
    assert first.text == again.text


async def test_deltas_may_be_awaited():
    pieces: list[str] = []

    async def keep(piece: str) -> None:
        pieces.append(piece)

    assert (await ask(on_delta=keep)).text == "".join(pieces)


async def test_an_error_of_the_reader_is_not_the_models():
    def fail(piece: str) -> None:
        raise KeyError("the reader's own")

    with pytest.raises(KeyError):
        await ask(on_delta=fail)


@pytest.mark.parametrize("broken", [lambda conversation: 1 / 0, lambda conversation: Reply()])
async def test_a_script_that_fails_says_so(broken):
    with pytest.raises(ModelTerminal, match="offline script") as failed:
        await ask(offline=broken)
    assert failed.value.code == "offline_script_failed"


async def test_an_agent_without_a_script_names_the_next_step():
    with pytest.raises(ModelUnavailable, match="AGENTOPS_MODEL"):
        await ask(offline=None)


async def test_a_turn_asks_for_a_bounded_number_of_calls():
    def crowd(number: int):
        return lambda conversation: Reply("", tuple(Call("look", {"n": n}) for n in range(number)))

    assert len((await ask(offline=crowd(MAX_CALLS))).calls) == MAX_CALLS
    with pytest.raises(ModelTerminal) as failed:
        await ask(offline=crowd(MAX_CALLS + 1))
    assert failed.value.code == "too_many_calls"
