"""The REST API: its routers under one ninja API, whose errors are left to ProblemMiddleware."""

from typing import Any, Never

from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.renderers import JSONRenderer

from . import approvals, operations, runs
from .body import JsonParser


class Readable(JSONRenderer):
    """JSON whose words stand in their own script."""

    json_dumps_params = {"ensure_ascii": False}


class Rest(NinjaAPI):
    def on_exception(self, request: HttpRequest, exc: Any) -> Never:
        raise exc


api = Rest(
    title="AgentOps",
    version="1",
    urls_namespace="v1",
    openapi_url=None,  # served by docs.py, with the problems of every route
    docs_url=None,
    parser=JsonParser(),
    renderer=Readable(),
)
api.add_router("", runs.router)
api.add_router("", approvals.router)
api.add_router("", operations.router)
