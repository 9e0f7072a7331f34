"""A shop over HTTP for tests of the demo's agents: answers by path, remembers what it was asked and by whom."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


def order(order_id: str, amount_minor: int, **changed: Any) -> dict[str, Any]:
    line = {"id": f"{order_id}-1", "title": "Lamp", "amount_minor": amount_minor}
    return {
        "id": order_id,
        "customer": "C-1",
        "status": "delivered",
        "charge": f"ch_{order_id}",
        "amount_minor": amount_minor,
        "currency": "EUR",
        "lines": [line],
        "shipment": {"status": "delivered", "tracking": "T-77"},
    } | changed


class Shop:
    """Its books; `answers` may be changed by a test."""

    def __init__(self) -> None:
        two = [{"id": f"A-2-{n}", "title": "Cup", "amount_minor": 1000} for n in (1, 2)]
        self.answers: dict[str, tuple[int, Any]] = {
            "/orders/A-1001": (200, order("A-1001", 12900)),
            "/orders/A-1002": (200, order("A-1002", 48900, shipment=None, status="packed")),
            "/orders/A-2": (200, order("A-2", 2000, lines=two)),
            "/orders/A-403": (403, {}),
            "/orders/A-500": (500, {}),
            "/orders/A-418": (418, {}),
            "/orders/A-7": (200, {"unexpected": True}),
        }
        self.final_sale: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []

    def answer(self, target: str, token: str | None) -> tuple[int, Any]:
        self.asked.append((target, token))
        url = urlsplit(target)
        if url.path == "/refund-policy":
            asked = parse_qs(url.query)["order"][0]
            return 200, {
                "order": asked,
                "refundable": asked not in self.final_sale,
                "reason": "it was a final sale" if asked in self.final_sale else "",
            }
        return self.answers.get(url.path, (404, {}))


@contextmanager
def serving(books: Shop) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = books.answer(self.path, self.headers.get("Txn-Token"))
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
