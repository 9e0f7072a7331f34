"""The REST API: its routers under one ninja API, whose errors are left to ProblemMiddleware."""

from typing import Any, Never

from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.renderers import JSONRenderer

from . import approvals, operations, runs
from .body import JsonParser

INTRODUCTION = """\
Operate AI agents that change real things: start a run, follow its events, let people decide what policy asks them to,
read the receipt of every effect.

Every request carries `Authorization: Bearer <token>`. Bodies are JSON in UTF-8, at most 256 KiB, with nothing beside
the declared fields; times are RFC 3339 in UTC; money is in minor units beside an ISO 4217 currency. Ids of another
tenant answer 404. Whatever goes wrong is problem+json (RFC 9457): branch on `code`, quote `request_id`. Answers carry
`RateLimit` and `RateLimit-Policy`; `X-Request-ID` and `traceparent` are taken in and passed on.
"""


class Readable(JSONRenderer):
    """JSON whose words stand in their own script."""

    json_dumps_params = {"ensure_ascii": False}


class Rest(NinjaAPI):
    def on_exception(self, request: HttpRequest, exc: Any) -> Never:
        raise exc


api = Rest(
    title="AgentOps",
    version="1",
    description=INTRODUCTION,
    urls_namespace="v1",
    openapi_url=None,  # served by docs.py, with the problems of every route
    docs_url=None,
    parser=JsonParser(),
    renderer=Readable(),
)
api.add_router("", runs.router)
api.add_router("", approvals.router)
api.add_router("", operations.router)
