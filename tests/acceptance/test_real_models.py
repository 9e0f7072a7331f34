"""Real models, over real HTTP, against a server that speaks each provider's wire format."""

import asyncio
import json
import socket
from typing import Any

import pytest
from pydantic import BaseModel

from agentops import llm
from agentops.demo.support_agent import support
from agentops.llm import (
    CallResult,
    ModelError,
    ModelRetryable,
    ModelTerminal,
    ModelUnavailable,
    OnDelta,
    TurnResult,
    TurnSettings,
)
from agentops.sdk import InvalidArguments, OrderId, ToolContext, tool
from agentops.sdk.testing import Rehearsal
from tests.acceptance.model_server import Answer, Asked, Failure, ModelServer, Raw, event, support_model
from tests.unit.demo.shop_server import Shop, serving

KEY = "sk-very-secret-key"
PROMPT = "Customer Jane Roe of Elm Street"
MODELS = ["anthropic:claude-haiku-5-5", "openai:gpt-5", "openai-chat:gpt-5"]


class Order(BaseModel):
    id: str


@tool(reads=True)
def lookup_order(ctx: ToolContext, order_id: OrderId) -> Order:
    """Look up one order."""
    return Order(id=order_id)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """Point both providers at a server, with a key."""

    def point(url: str) -> None:
        for provider in ("ANTHROPIC", "OPENAI"):
            monkeypatch.setenv(f"{provider}_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")

    return point


async def ask(
    model: str, *, turns: Any = (), settings: TurnSettings | None = None, on_delta: OnDelta = len
) -> TurnResult:
    return await llm.turn(
        model,
        instructions="Be brief.",
        history=llm.history(PROMPT, turns),
        tools=[lookup_order],
        offline=None,
        settings=settings or TurnSettings(),
        on_delta=on_delta,
    )


async def failure(model: str, **how: Any) -> ModelError:
    """The one error of one request, which tells nothing that it must not."""
    with pytest.raises(ModelError) as failed:
        await ask(model, **how)
    assert KEY not in failed.value.message
    assert "Jane" not in failed.value.message
    assert model in failed.value.message
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None or failed.value.__suppress_context__
    return failed.value


@pytest.mark.parametrize("model", MODELS)
async def test_a_conversation_runs_over_two_turns(model: str, use: Any):
    call = ("lookup_order", '{"order_id": "A-1001"}')
    refused = {"error": {"code": "not_found", "message": "The shop knows no order A-1002."}}

    def answer(asked: Asked) -> Answer:
        if asked.results():
            return Answer(("It is ", "on its ", "way."))
        return Answer(("Let me ", "look."), (call, ("lookup_order", '{"order_id": "A-1002"}')))

    with ModelServer(answer) as server:
        use(server.url)
        pieces: list[str] = []
        first = await ask(model, on_delta=pieces.append)
        assert pieces == ["Let me ", "look."]
        assert first.text == "Let me look."
        assert [lookup_order.bind(each.args) for each in first.calls] == [
            {"order_id": "A-1001"},
            {"order_id": "A-1002"},
        ]
        stored = json.loads(json.dumps(first.response))
        second = await ask(
            model, turns=[(stored, [CallResult({"id": "A-1001"}), CallResult(refused, ok=False)])]
        )
        assert (second.text, second.calls) == ("It is on its way.", ())
        told = server.requests[1].results()
        assert [result for result, _ in told] == [{"id": "A-1001"}, refused]
        if model.startswith("anthropic"):
            assert [mark for _, mark in told] == [False, True]
        assert len(server.requests) == 2
        assert KEY in server.requests[0].headers.get(
            "authorization", server.requests[0].headers.get("x-api-key")
        )
        assert "Be brief." in json.dumps(server.requests[0].body)
        assert server.requests[0].body["stream"] is True
        assert (first.input_tokens, first.output_tokens) == (1000, 200)
        assert first.cost_microusd == {"anthropic": 200}.get(model.partition(":")[0], 3250)


@pytest.mark.parametrize("model", MODELS)
async def test_the_support_agent_refunds_on_a_real_model(
    model: str, use: Any, monkeypatch: pytest.MonkeyPatch
):
    ctx, turns = Rehearsal(), []
    with serving(Shop()) as shop_url, ModelServer(support_model) as server:
        use(server.url)
        monkeypatch.setenv("AGENTOPS_SHOP_URL", shop_url)
        for number in range(1, 5):
            answer = await llm.turn(
                model,
                instructions=support.instructions,
                history=llm.history("My order A-1001 arrived damaged, please refund it.", turns),
                tools=support.tools,
                offline=support.offline,
                settings=TurnSettings(),
                on_delta=len,
            )
            results = []
            for index, call in enumerate(answer.calls):
                used = support.tool(call.name)
                assert used is not None
                ctx.begin(f"turn-{number}/call-{index}")
                results.append(CallResult(used.dump(used(ctx, **used.bind(call.args)))))
            turns.append((answer.response, results))
    assert [proposal.action for proposal in ctx.proposals] == ["refund.create", "mail.send"]
    assert ctx.proposals[0].params["amount_minor"] == 12900
    assert answer.text == "Your refund ref_A-1001-1 is on its way."


@pytest.mark.parametrize("model", MODELS)
async def test_the_schema_goes_out_as_the_tool_declares_it(model: str, use: Any):
    with ModelServer(lambda asked: Answer(("Hi",))) as server:
        use(server.url)
        await ask(model)
        (offered,) = server.requests[0].body["tools"]
        offered = offered.get("function", offered)
        schema = offered.get("parameters") or offered.get("input_schema")
        assert (offered["name"], offered["description"]) == ("lookup_order", "Look up one order.")
        assert schema == lookup_order.input_schema


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (429, ModelRetryable, "rate_limited"),
        (500, ModelRetryable, "model_server_error"),
        (502, ModelRetryable, "model_server_error"),
        (503, ModelRetryable, "model_overloaded"),
        (529, ModelRetryable, "model_overloaded"),
        (408, ModelRetryable, "model_server_error"),
        (400, ModelTerminal, "request_rejected"),
        (401, ModelTerminal, "unauthorized"),
        (403, ModelTerminal, "unauthorized"),
        (404, ModelTerminal, "model_not_found"),
        (422, ModelTerminal, "request_rejected"),
    ],
)
async def test_a_status_says_whether_to_try_again_and_one_request_is_sent(
    model: str, status: int, kind: type[ModelError], code: str, use: Any
):
    body = {"type": "error", "error": {"type": "some_error", "message": f"{PROMPT} {KEY}"}}
    with ModelServer(lambda asked: Failure(status, body, {"Retry-After": "7"})) as server:
        use(server.url)
        failed = await failure(model)
        assert (type(failed), failed.code) == (kind, code)
        if isinstance(failed, ModelRetryable):
            assert failed.retry_after_seconds == 7
        assert len(server.requests) == 1


@pytest.mark.parametrize("model", MODELS)
async def test_a_wait_that_is_asked_for_is_bounded(model: str, use: Any):
    with ModelServer(lambda asked: Failure(429, {}, {"Retry-After": "99999999"})) as server:
        use(server.url)
        failed = await failure(model)
        assert isinstance(failed, ModelRetryable)
        assert failed.retry_after_seconds == 600


async def test_an_empty_account_is_not_worth_another_try(use: Any):
    body = {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded."}}
    with ModelServer(lambda asked: Failure(429, body)) as server:
        use(server.url)
        assert (await failure("openai:gpt-5")).code == "quota_exceeded"


@pytest.mark.parametrize("model", MODELS)
async def test_a_server_that_is_down_is_worth_another_try(model: str, use: Any):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        use(f"http://127.0.0.1:{taken.getsockname()[1]}")
        failed = await failure(model)
    assert isinstance(failed, ModelRetryable)
    assert failed.code == "connection_broke"


STARTS = {
    "anthropic": event("message_start", {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}})
    + event("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    + event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hal"}}),
    "openai": event("response.created", {"type": "response.created", "sequence_number": 0, "response": {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "status": "in_progress"}})
    + event("response.output_text.delta", {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1",
        "output_index": 0, "content_index": 0, "delta": "Hal", "logprobs": []}),
    "openai-chat": 'data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": '
    '[{"index": 0, "delta": {"content": "Hal"}, "finish_reason": null}]}\n\n',
}  # fmt: skip


def begun(model: str) -> str:
    return STARTS[model.partition(":")[0]]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cut", [True, False])
async def test_an_answer_that_breaks_off_is_no_answer(model: str, cut: bool, use: Any):
    with ModelServer(lambda asked: Raw((begun(model),), cut=cut)) as server:
        use(server.url)
        pieces: list[str] = []
        failed = await failure(model, on_delta=pieces.append)
        assert pieces == ["Hal"]
        assert isinstance(failed, ModelRetryable), failed.code
        assert len(server.requests) == 1


GARBAGE = {
    "anthropic": "event: content_block_delta\ndata: {not json\n\n",
    "openai": "event: response.output_text.delta\ndata: {not json\n\n",
    "openai-chat": "data: {not json\n\n",
}
WRONG_SHAPE = {
    "anthropic": 'event: content_block_delta\ndata: {"type": "content_block_delta", "index": "x", "delta": []}\n\n',
    "openai": 'event: response.completed\ndata: {"type": "response.completed", "response": 7}\n\n',
    "openai-chat": 'data: {"choices": 7}\n\n',
}


@pytest.mark.parametrize("model", MODELS)
async def test_an_answer_that_is_garbled_counts_as_broken_off(model: str, use: Any):
    with ModelServer(lambda asked: Raw((begun(model), GARBAGE[model.partition(":")[0]]))) as server:
        use(server.url)
        failed = await failure(model)
        assert (type(failed), failed.code) == (ModelRetryable, "answer_broke_off")
        assert len(server.requests) == 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_of_another_shape_leaves_as_an_error_of_ours(model: str, whole: bool, use: Any):
    strange = (
        Failure(200, ["a page of a proxy"])
        if whole
        else Raw((begun(model), WRONG_SHAPE[model.partition(":")[0]]))
    )
    with ModelServer(lambda asked: strange) as server:
        use(server.url)
        await failure(model)
        assert len(server.requests) == 1


async def test_an_overload_in_the_middle_of_a_stream_is_worth_another_try(use: Any):
    model = "anthropic:claude-haiku-5-5"
    overload = event("error", {"type": "error", "error": {"type": "overloaded_error", "message": PROMPT}})
    with ModelServer(lambda asked: Raw((begun(model), overload))) as server:
        use(server.url)
        failed = await failure(model)
        assert (type(failed), failed.code) == (ModelRetryable, "model_overloaded")


@pytest.mark.parametrize("model", MODELS)
async def test_silence_ends_a_turn(model: str, use: Any):
    with ModelServer(lambda asked: Raw((begun(model),), wait_seconds=1)) as server:
        use(server.url)
        failed = await failure(model, settings=TurnSettings(silence_seconds=0.2))
        assert (type(failed), failed.code) == (ModelRetryable, "model_timeout")


@pytest.mark.parametrize("model", MODELS)
async def test_the_deadline_ends_a_turn(model: str, use: Any):
    with ModelServer(lambda asked: Raw((begun(model),), wait_seconds=1)) as server:
        use(server.url)
        failed = await failure(model, settings=TurnSettings(deadline_seconds=0.2))
        assert (type(failed), failed.code) == (ModelRetryable, "model_timeout")


@pytest.mark.parametrize("model", MODELS)
async def test_an_empty_answer_is_asked_for_again(model: str, use: Any):
    with ModelServer(lambda asked: Answer()) as server:
        use(server.url)
        failed = await failure(model)
        assert isinstance(failed, ModelRetryable), failed.code


@pytest.mark.parametrize(("model", "stop"), [(MODELS[0], "refusal"), (MODELS[2], "content_filter")])
async def test_a_refusal_to_answer_is_the_end(model: str, stop: str, use: Any):
    with ModelServer(lambda asked: Answer(("I",), stop=stop)) as server:
        use(server.url)
        failed = await failure(model)
        assert (type(failed), failed.code) == (ModelTerminal, "model_refused")


@pytest.mark.parametrize(("model", "stop"), [(MODELS[0], "max_tokens"), (MODELS[2], "length")])
async def test_an_answer_at_its_limit_says_so(model: str, stop: str, use: Any):
    cut_off = Answer(("Let me",), (("lookup_order", '{"order_id": "A-1'),), stop=stop)
    with ModelServer(lambda asked: cut_off) as server:
        use(server.url)
        first = await ask(model)
        assert first.finish_reason == "length"
        with pytest.raises(InvalidArguments):
            lookup_order.bind(first.calls[0].args)
        again = await ask(model, turns=[(first.response, [CallResult({"error": {}}, ok=False)])])
        assert again.finish_reason == "length"


@pytest.mark.parametrize("model", MODELS)
async def test_odd_characters_from_a_model_are_repaired_in_words_and_refused_in_calls(model: str, use: Any):
    odd = Answer(("a\x00b", "\ud83d", "\ude00"), (("lookup_order", '{"order_id": "A-1\\u0000"}'),))
    with ModelServer(lambda asked: odd) as server:
        use(server.url)
        pieces: list[str] = []
        result = await ask(model, on_delta=pieces.append)
        assert "\x00" not in json.dumps(result.response, ensure_ascii=False)
        json.dumps(result.response, ensure_ascii=False).encode()
        "".join(pieces).encode()
        assert result.text == "a�b\U0001f600"
        with pytest.raises(InvalidArguments):
            lookup_order.bind(result.calls[0].args)


async def test_tokens_that_a_server_does_not_count_are_counted_at_their_most(use: Any):
    uncounted = (
        begun(MODELS[2]).replace('"finish_reason": null', '"finish_reason": "stop"') + "data: [DONE]\n\n"
    )
    with ModelServer(lambda asked: Raw((uncounted,))) as server:
        use(server.url)
        answered = await ask(MODELS[2])
        sent = llm.input_chars("Be brief.", llm.history(PROMPT), [lookup_order])
        assert answered.input_tokens == sent > len(PROMPT)
        assert answered.cost_microusd >= llm.worst_cost_microusd(MODELS[2], sent, len(answered.text))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "endless",
    [Answer(("x" * 1000,) * 201), Answer(calls=(("lookup_order", json.dumps({"x": "y" * 200_001})),))],
)
async def test_an_answer_without_end_is_cut_off(model: str, endless: Answer, use: Any):
    with ModelServer(lambda asked: endless) as server:
        use(server.url)
        failed = await failure(model)
        assert (type(failed), failed.code) == (ModelTerminal, "too_long")


async def test_without_a_key_nothing_is_sent(use: Any, monkeypatch: pytest.MonkeyPatch):
    with ModelServer(lambda asked: Answer(("Hi",))) as server:
        use(server.url)
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        with pytest.raises(ModelUnavailable, match="ANTHROPIC_API_KEY"):
            await ask(MODELS[0])
        monkeypatch.setenv("AGENTOPS_MODEL_ALLOW", "openai:gpt-5")
        with pytest.raises(ModelUnavailable, match="AGENTOPS_MODEL_ALLOW"):
            await ask(MODELS[2])
        assert server.requests == []


async def test_turns_run_side_by_side_on_one_client(use: Any):
    with ModelServer(lambda asked: Answer(("Hi",))) as server:
        use(server.url)
        told = await asyncio.gather(*(ask(MODELS[0]) for _ in range(8)))
        assert [each.text for each in told] == ["Hi"] * 8
        assert len(server.requests) == 8


async def test_a_cancelled_turn_leaves_nothing_open(use: Any):
    with ModelServer(lambda asked: Raw((begun(MODELS[0]),), wait_seconds=1)) as server:
        use(server.url)
        heard = asyncio.Event()
        task = asyncio.create_task(ask(MODELS[0], on_delta=lambda piece: heard.set()))
        await asyncio.wait_for(heard.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
