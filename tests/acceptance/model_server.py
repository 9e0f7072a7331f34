"""A model provider on loopback that speaks the wire formats of Anthropic and OpenAI, streaming, over real HTTP.

`answer` is asked once per request and says what to send: words and calls, a failure, or bytes as they are. Every request
is kept with its headers, so that a test can count what was on the wire.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """Words in pieces, then calls as (name, JSON text of the arguments), sent in two halves each."""

    pieces: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    stop: str | None = None
    input_tokens: int = 1000
    output_tokens: int = 200


@dataclass(frozen=True)
class Failure:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """A stream sent as it stands; `cut` closes the connection in its middle."""

    events: tuple[str, ...]
    cut: bool = False
    wait_seconds: float = 0


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    def results(self) -> list[tuple[Any, bool | None]]:
        """What the provider was told of our calls: result and, where its wire has one, the error mark."""
        match self.path:
            case "/v1/messages":
                blocks = [b for m in self.body["messages"] if m["role"] == "user" for b in m["content"]]
                results = [block for block in blocks if block["type"] == "tool_result"]
                return [(json.loads(block["content"][0]["text"]), block["is_error"]) for block in results]
            case "/v1/responses":
                outputs = [item for item in self.body["input"] if item.get("type") == "function_call_output"]
                return [(json.loads(item["output"]), None) for item in outputs]
            case _:
                told = [message for message in self.body["messages"] if message["role"] == "tool"]
                return [(json.loads(message["content"]), None) for message in told]


Responder = Callable[[Asked], Answer | Failure | Raw]


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # hundreds may ask in the same moment


class ModelServer:
    """Use as a context manager; `url` is what goes into the provider's base URL variable."""

    def __init__(self, answer: Responder) -> None:
        self.answer = answer
        self.requests: list[Asked] = []
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "ModelServer":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.path.partition("?")[0], headers, body)
                server.requests.append(asked)
                match server.answer(asked):
                    case Answer() as answer:
                        self._stream(STREAMS[asked.path](answer, asked.body["model"]))
                    case Failure(status, failure, extra):
                        self._fail(status, failure, extra)
                    case Raw(events, cut, wait_seconds):
                        self._stream(iter(events), cut=cut, wait_seconds=wait_seconds)

            def _fail(self, status: int, failure: Any, extra: dict[str, str]) -> None:
                payload = json.dumps(failure).encode()
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def _stream(self, events: Iterator[str], *, cut: bool = False, wait_seconds: float = 0) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for event in events:
                    chunk = event.encode("utf-8", "surrogatepass")
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                time.sleep(wait_seconds)
                if cut:
                    self.close_connection = True
                else:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler


def support_model(asked: Asked) -> Answer:
    """A model that does what `support-agent` is told: looks up, checks, refunds, and names what came of it."""
    order_id = re.search(r"A-[0-9]+", json.dumps(asked.body.get("messages") or asked.body.get("input")))
    assert order_id is not None
    order = json.dumps({"order_id": order_id.group()})
    match [result for result, _ in asked.results()]:
        case []:
            return Answer(("Let me look ", "that up."), (("lookup_order", order),))
        case [_]:
            return Answer((), (("check_refund_policy", order),))
        case [_, _]:
            refund = json.dumps({"order_id": order_id.group(), "reason": "damaged"})
            return Answer(("I will refund it.",), (("refund_order", refund),))
        case [*_, {"error": error}]:
            return Answer((f"I am sorry: {error['message']}",))
        case [*_, receipt]:
            return Answer(("Your refund ", receipt["provider_ref"], " is on its way."))
    raise AssertionError("unreachable")


def event(name: str, payload: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(payload)}\n\n"


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def anthropic_stream(answer: Answer, model: str) -> Iterator[str]:
    yield event("message_start", {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": 1},
    }})  # fmt: skip
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if answer.pieces:
        deltas = [{"type": "text_delta", "text": piece} for piece in answer.pieces]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for number, (name, arguments) in enumerate(answer.calls):
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        blocks.append(
            (block, [{"type": "input_json_delta", "partial_json": half} for half in _halves(arguments)])
        )
    for index, (block, deltas) in enumerate(blocks):
        yield event(
            "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
        )
        for delta in deltas:
            yield event(
                "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
            )
        yield event("content_block_stop", {"type": "content_block_stop", "index": index})
    stop = answer.stop or ("tool_use" if answer.calls else "end_turn")
    yield event("message_delta", {
        "type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": answer.output_tokens},
    })  # fmt: skip
    yield event("message_stop", {"type": "message_stop"})


def responses_stream(answer: Answer, model: str) -> Iterator[str]:
    response: dict[str, Any] = {
        "id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": model, "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress",
        "error": None, "incomplete_details": None, "usage": None,
    }  # fmt: skip
    sequence = iter(range(1_000))

    def send(kind: str, **payload: Any) -> str:
        return event(kind, {"type": kind, "sequence_number": next(sequence), **payload})

    yield send("response.created", response=response)
    output: list[dict[str, Any]] = []
    if answer.pieces:
        item: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        part = {"type": "output_text", "text": "", "annotations": []}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield send("response.output_item.added", output_index=0, item=item)
        yield send("response.content_part.added", **at, part=part)
        for piece in answer.pieces:
            yield send("response.output_text.delta", **at, delta=piece, logprobs=[])
        part = part | {"text": "".join(answer.pieces)}
        yield send("response.output_text.done", **at, text=part["text"], logprobs=[])
        yield send("response.content_part.done", **at, part=part)
        output.append(item | {"status": "completed", "content": [part]})
        yield send("response.output_item.done", output_index=0, item=output[-1])
    for number, (name, arguments) in enumerate(answer.calls):
        index = len(output)
        call = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "name": name}
        yield send(
            "response.output_item.added",
            output_index=index,
            item=call | {"arguments": "", "status": "in_progress"},
        )
        for half in _halves(arguments):
            yield send(
                "response.function_call_arguments.delta", item_id=call["id"], output_index=index, delta=half
            )
        yield send(
            "response.function_call_arguments.done",
            item_id=call["id"], output_index=index, name=name, arguments=arguments,
        )  # fmt: skip
        output.append(call | {"arguments": arguments, "status": "completed"})
        yield send("response.output_item.done", output_index=index, item=output[-1])
    usage = {
        "input_tokens": answer.input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }  # fmt: skip
    yield send(
        "response.completed", response=response | {"status": "completed", "output": output, "usage": usage}
    )


def chat_stream(answer: Answer, model: str) -> Iterator[str]:
    def send(delta: dict[str, Any] | None, **more: Any) -> str:
        choices = (
            [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}]
        )
        chunk = {
            "id": "chatcmpl_1",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": model,
        }
        return f"data: {json.dumps(chunk | {'choices': choices} | more)}\n\n"

    yield send({"role": "assistant", "content": ""})
    for piece in answer.pieces:
        yield send({"content": piece})
    for number, (name, arguments) in enumerate(answer.calls):
        first, second = _halves(arguments)
        call = {"index": number, "id": f"call_{number}", "type": "function"}
        yield send({"tool_calls": [call | {"function": {"name": name, "arguments": first}}]})
        yield send({"tool_calls": [{"index": number, "function": {"arguments": second}}]})
    yield send({}, finish=answer.stop or ("tool_calls" if answer.calls else "stop"))
    yield send(None, usage={
        "prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    })  # fmt: skip
    yield "data: [DONE]\n\n"


STREAMS: dict[str, Callable[[Answer, str], Iterator[str]]] = {
    "/v1/messages": anthropic_stream,
    "/v1/responses": responses_stream,
    "/v1/chat/completions": chat_stream,
}
