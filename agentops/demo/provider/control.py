"""The control door for tests and demos: the books, the faults, and more orders. It answers whatever fault is on."""

import json
import re
from typing import Any

from agentops.demo.provider import books
from agentops.demo.provider.books import Books
from agentops.demo.provider.catalogue import listed, more_orders
from agentops.demo.provider.faults import NAMES, BadFault, Faults
from agentops.demo.provider.server import Reply, Request, error_reply, json_reply

MAX_COUNT = 10_000
TENANT = re.compile(r"[a-z][a-z0-9-]{0,38}")


class BadRequest(ValueError):
    pass


class Control:
    def __init__(self, ledger: Books, faults: Faults) -> None:
        self._books = ledger
        self._faults = faults

    def __call__(self, request: Request) -> Reply:
        try:
            match (request.method, request.path):
                case ("GET", "/_books"):
                    with self._books.reading() as db:
                        return json_reply(200, books.shown(db, request.query.get("order")))
                case ("GET", "/_faults"):
                    return json_reply(200, self._faults.shown())
                case ("POST", "/_faults"):
                    self._faults.order(_body(request))
                    return json_reply(200, self._faults.shown())
                case ("POST", "/_reset"):
                    self._faults.order({"mode": "ok"})
                    return json_reply(200, self._faults.shown())
                case ("GET", "/_orders"):
                    return json_reply(200, self._orders(request.query.get("tenant")))
                case ("POST", "/_orders"):
                    return json_reply(201, self._more_orders(_body(request)))
                case ("POST", "/_webhooks"):
                    return json_reply(200, self._listen(_body(request)))
                case _:
                    message = f"The control door has no {request.method} {request.path}."
                    return error_reply(404, "not_found", message)
        except BadFault as why:
            return error_reply(400, "bad_fault", str(why), modes=NAMES)
        except BadRequest as why:
            return error_reply(400, "bad_request", str(why))

    def _listen(self, wanted: dict[str, Any]) -> dict[str, Any]:
        tenant, url, secret = (wanted.get(name) for name in ("tenant", "url", "secret"))
        if not (isinstance(tenant, str) and isinstance(url, str) and isinstance(secret, str)):
            raise BadRequest("tenant, url and secret are texts")
        with self._books.writing() as db:
            db.execute("INSERT OR REPLACE INTO endpoints VALUES (?, ?, ?)", (tenant, url, secret))
        return {"tenant": tenant, "url": url}

    def _orders(self, tenant: str | None) -> list[dict[str, Any]]:
        with self._books.reading() as db:
            rows = db.execute(
                "SELECT * FROM orders WHERE ?1 IS NULL OR tenant = ?1 ORDER BY tenant, number", (tenant,)
            )
            return [listed(row) for row in rows]

    def _more_orders(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        tenant, count, amount_minor = wanted.get("tenant"), wanted.get("count", 1), wanted.get("amount_minor")
        if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
            raise BadRequest("tenant is a short name in small letters")
        if type(count) is not int or not 1 <= count <= MAX_COUNT:
            raise BadRequest(f"count is a whole number from 1 to {MAX_COUNT}")
        if amount_minor is not None and (type(amount_minor) is not int or amount_minor < 1):
            raise BadRequest("amount_minor is a whole number, one or more")
        with self._books.writing() as db:
            return [listed(row) for row in more_orders(db, tenant, count, amount_minor)]


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return body
