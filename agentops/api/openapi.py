"""The OpenAPI document: what ninja knows of the routes, with scopes, problems, headers and the event stream."""

import json
from functools import cache
from typing import Any

from ninja.openapi.schema import REF_TEMPLATE, OpenAPISchema
from ninja.operation import Operation
from pydantic.json_schema import models_json_schema

from agentops.kernel import problems as family
from agentops.kernel.problems import Problem

from . import shapes
from .door import BearerToken
from .problems import MEDIA_TYPE
from .rest import api

SCHEME = "BearerToken"
ALWAYS: tuple[type[Problem], ...] = (
    family.Unauthorized,
    family.NotYours,
    family.TooMany,
    family.Internal,
    family.Unavailable,
)
WITH_BODY: tuple[type[Problem], ...] = (
    family.BadRequest,
    family.TooLarge,
    family.UnsupportedMedia,
    family.Invalid,
)
# What the example of each problem says.
DETAILS: dict[type[Problem], str] = {
    family.BadRequest: "The body is not valid JSON (Expecting value: line 1 column 11). Correct it and send it again.",
    family.Unauthorized: "Send `Authorization: Bearer <token>`; a tenant administrator issues tokens.",
    family.NotYours: "This token has no scope runs:write; issue one that has it.",
    family.NotFound: "There is no such run. Check the id that POST /v1/runs answered.",
    family.Conflict: "Rosa Jung answered 'approve' at 09:14:02 UTC on 30 November 2026.",
    family.TooLarge: "A body has at most 256 KiB. Send less, or a link to what is large.",
    family.UnsupportedMedia: "Send JSON, with `Content-Type: application/json`.",
    family.Invalid: "Not valid: /agnet. See `errors`, correct it and send it again.",
    family.TooMany: "This caller may send 600 requests a minute. Send the next one in 12 s.",
    family.Internal: "An error of ours; it is in our log under this request_id.",
    family.Unavailable: "The database does not answer now. Repeat the request later.",
}
LAST_EVENT_ID = {
    "in": "header",
    "name": "Last-Event-ID",
    "required": False,
    "schema": {"type": "string"},
    "description": "The number of the last event that you have; the stream goes on after it. Wins over `after`.",
}
AFTER = {
    "in": "query",
    "name": "after",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "The same, for clients that cannot set headers.",
}
STREAM_EXAMPLE = """\
id: 1
event: run.created
data: {"run_id":"run_01kbt3p8z4e6gah2mxw0c9v5fd","seq":1,"type":"run.created","at":"2026-11-30T09:12:38.004Z","data":{}}

"""


class Document(OpenAPISchema):
    """ninja's document with what it cannot know: the scope of each route, and every problem that it answers with."""

    def operation_security(self, operation: Operation) -> list[dict[str, Any]] | None:
        return [{SCHEME: [auth.scope]} for auth in operation.auth_callbacks if isinstance(auth, BearerToken)]

    def responses(self, operation: Operation) -> dict[int, dict[str, Any]]:
        kinds = list(ALWAYS)
        if "{" in operation.path:
            kinds.append(family.NotFound)
        if "POST" in operation.methods:
            kinds += [*WITH_BODY, family.Conflict]
        return super().responses(operation) | _problems(kinds)


def _problems(kinds: list[type[Problem]]) -> dict[int, dict[str, Any]]:
    ordered = sorted(kinds, key=lambda kind: kind.status)
    return {kind.status: {"$ref": f"#/components/responses/{kind.__name__}"} for kind in ordered}


def _problem_response(kind: type[Problem]) -> dict[str, Any]:
    example = kind(DETAILS[kind]).body(instance="/v1/runs", request_id="0197c3a1-5b7e-7f00-8a11-0c9be2d4f3a6")
    return {
        "description": kind.title,
        "content": {
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example},
        },
    }


def _events() -> dict[str, Any]:
    """The event stream, which another surface serves under the same roof."""
    run_id = {"in": "path", "name": "run_id", "required": True, "schema": {"type": "string"}}
    kinds = [*ALWAYS, family.BadRequest, family.NotFound]
    return {
        "get": {
            "operationId": "followRun",
            "summary": "Follow a run's events",
            "description": "Server-sent events, each once and in order; `id` is the event's number. After the last one"
            " the stream ends, and a reconnect past it gets 204. With `Accept: application/json`: a page of them.",
            "tags": ["Runs"],
            "parameters": [run_id, LAST_EVENT_ID, AFTER],
            "security": [{SCHEME: ["runs:read"]}],
            "responses": {
                200: {
                    "description": "OK",
                    "content": {
                        "text/event-stream": {"schema": {"type": "string"}, "example": STREAM_EXAMPLE}
                    },
                },
                204: {"description": "The stream has ended before this position"},
                **_problems(kinds),
            },
        }
    }


@cache
def document() -> dict[str, Any]:
    """The document as plain JSON values, the same in every process of a release."""
    written = Document(api, "v1/")
    written["paths"]["/v1/runs/{run_id}/events"] = _events()
    components = written["components"]
    _, problem = models_json_schema([(shapes.Problem, "serialization")], ref_template=REF_TEMPLATE)
    components["schemas"] |= problem["$defs"]
    components["responses"] = {kind.__name__: _problem_response(kind) for kind in DETAILS}
    components["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
    document: dict[str, Any] = json.loads(json.dumps(written))
    return document
