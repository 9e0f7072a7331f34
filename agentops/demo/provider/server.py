"""Small HTTP/1.1 server: one thread per connection, an answer or a closed socket, and a port that can really be shut."""

import json
import socket
import sys
import threading
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

HOST = "127.0.0.1"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # what we call is on this machine
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Drop(Exception):
    """Close the connection without a word."""


App = Callable[[Request], Reply]


def json_reply(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(content, ensure_ascii=False).encode(), headers or {})


def error_reply(status: int, code: str, message: str, **extra: Any) -> Reply:
    """What the shop and the control door say when they refuse; the payments API has words of its own."""
    return json_reply(status, {"error": {"code": code, "message": message, **extra}})


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet
    server: "_Server"

    def _answer(self) -> None:
        try:
            reply = self._read_and_answer()
        except Drop:
            self.close_connection = True
            return
        except Exception:
            traceback.print_exc(file=sys.stderr)
            reply = error_reply(
                500, "internal_error", "The demo provider met a fault of its own; see its log."
            )
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _read_and_answer(self) -> Reply:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            return error_reply(411, "length_required", "Send a Content-Length.")
        if int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            return error_reply(413, "body_too_large", f"The body may have {MAX_BODY_BYTES} bytes at most.")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Drop
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return self.server.app(Request(self.command, unquote(url.path), query, self.headers, body))

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the books are the log."""


class _Server(ThreadingHTTPServer):
    allow_reuse_port = True  # lives beside the listener's holder socket
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, port: int, app: App) -> None:
        self.app = app
        self._live: set[socket.socket] = set()
        super().__init__((HOST, port), _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._live.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._live.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that left is no news
            super().handle_error(request, client_address)

    def refuse(self) -> None:
        """Close the listening socket first, then cut whoever is connected."""
        with suppress(OSError):
            # poll() keeps a closed socket listening until it wakes; this ends that at once (on Linux).
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()
        for live in list(self._live):
            with suppress(OSError):
                live.shutdown(socket.SHUT_RDWR)


class PortTaken(Exception):
    pass


class Listener:
    """A port that belongs to us for life and answers only while it is open."""

    def __init__(self, port: int, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._server: _Server | None = None
        try:
            # Shared ports would let a second process take every other connection: see first that nobody is there.
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((HOST, port))
            # Bound and never listening: while we refuse connections nobody else can be given the port.
            self._holder = socket.socket()
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._holder.bind((HOST, port))
        except OSError as fault:
            raise PortTaken(f"port {port} of {HOST} cannot be had: {fault.strerror}") from fault
        self.port: int = self._holder.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"

    def follow(self, wanted: Callable[[], bool]) -> None:
        """Afterwards connections are accepted, or refused and the live ones dropped."""
        with self._lock:
            # Asked under the lock, so that of two changes at once the later one wins.
            if (is_wanted := wanted()) and self._server is None:
                self._server = _Server(self.port, self._app)
                threading.Thread(target=self._server.serve_forever, name=self.url, daemon=True).start()
            elif not is_wanted and self._server is not None:
                self._server.refuse()
                self._server = None
