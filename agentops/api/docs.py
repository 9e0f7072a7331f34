"""The documentation of the REST API: one page, rendered on the server from the OpenAPI document, and that document."""

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from .openapi import document

_BACKTICKED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One field or parameter; `kind` is its type in words, with links to other shapes."""

    name: str
    kind: SafeString
    required: bool
    description: SafeString
    place: str = ""


@dataclass(frozen=True)
class Shape:
    name: str
    description: SafeString
    rows: list[Row]
    example: str


@dataclass(frozen=True)
class Response:
    status: str
    description: str
    shape: str


@dataclass(frozen=True)
class Route:
    id: str
    method: str
    path: str
    tag: str
    summary: str
    description: SafeString
    scope: str
    parameters: list[Row]
    body: Shape | None
    responses: list[Response]
    problems: list[str]
    example: str


@require_safe
def openapi_json(request: HttpRequest) -> JsonResponse:
    return JsonResponse(document(), json_dumps_params={"ensure_ascii": False})


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html", _page())


@cache
def _page() -> dict[str, Any]:
    written = document()
    routes = [
        _route(path, method, operation)
        for path, methods in written["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = written["components"]["schemas"]
    problems = [
        (response["content"]["application/problem+json"]["example"], response["description"])
        for response in written["components"]["responses"].values()
    ]
    return {
        "info": written["info"],
        "introduction": [_prose(part) for part in written["info"]["description"].strip().split("\n\n")],
        "tags": [
            (tag, [route for route in routes if route.tag == tag])
            for tag in dict.fromkeys(route.tag for route in routes)
        ],
        "shapes": [_shape(name, schemas[name]) for name in sorted(schemas)],
        "problems": problems,
    }


def _route(path: str, method: str, operation: dict[str, Any]) -> Route:
    schemas = document()["components"]["schemas"]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    name = _shape_name(content["schema"]) if content else ""
    answers = [(status, answer) for status, answer in operation["responses"].items() if "$ref" not in answer]
    return Route(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        tag=operation["tags"][0],
        summary=operation["summary"],
        description=_prose(operation.get("description", "")),
        scope=operation["security"][0]["BearerToken"][0],
        parameters=[_parameter(parameter) for parameter in operation["parameters"]],
        body=_shape(name, schemas[name]) if name else None,
        responses=[_response(status, answer) for status, answer in answers],
        problems=[status for status, answer in operation["responses"].items() if "$ref" in answer],
        example=_curl(method.upper(), path, _example(schemas[name]) if name else ""),
    )


def _shape_name(schema: dict[str, Any]) -> str:
    """The component that a schema names, also where ninja wraps it because it has a default."""
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", [])), "")
    return str(reference).rpartition("/")[2]


def _shape(name: str, schema: dict[str, Any]) -> Shape:
    required = schema.get("required", [])
    rows = [
        Row(field, _kind(details), field in required, _prose(details.get("description", "")))
        for field, details in schema.get("properties", {}).items()
    ]
    return Shape(name, _prose(schema.get("description", "")), rows, _example(schema))


def _example(schema: dict[str, Any]) -> str:
    return "".join(
        json.dumps(example, indent=2, ensure_ascii=False) for example in schema.get("examples", [])
    )


def _parameter(parameter: dict[str, Any]) -> Row:
    return Row(
        parameter["name"],
        _kind(parameter["schema"]),
        parameter["required"],
        _prose(parameter.get("description", "")),
        parameter["in"],
    )


def _response(status: str, answer: dict[str, Any]) -> Response:
    content = answer.get("content", {})
    media_type = next(iter(content), "")
    shape = _shape_name(content[media_type]["schema"]) if content else ""
    return Response(status, answer["description"] if shape else media_type or answer["description"], shape)


def _kind(schema: dict[str, Any]) -> SafeString:
    """A schema's type in words: `text, 1 to 120 characters`, `list of Operation`, `time or null`."""
    name = _shape_name(schema)
    if name:
        return format_html('<a href="#shape-{}">{}</a>', name, name)
    options = schema.get("anyOf")
    if options:
        return format_html_join(" or ", "{}", ((_kind(option),) for option in options))
    if "enum" in schema:
        return format_html_join(", ", "<code>{}</code>", ((value,) for value in schema["enum"]))
    match schema.get("type"):
        case "array":
            return format_html("list of {}", _kind(schema["items"]))
        case "string":
            return _bounded("time" if schema.get("format") == "date-time" else "text", schema, "Length")
        case "integer":
            return _bounded("whole number", schema, "imum")
        case "boolean":
            return escape("true or false")
        case "object":
            return escape("object")
        case "null":
            return escape("null")
    return escape("any value")


def _bounded(word: str, schema: dict[str, Any], bound: str) -> SafeString:
    least, most = schema.get(f"min{bound}"), schema.get(f"max{bound}")
    unit = " characters" if bound == "Length" else ""
    if least is not None and most is not None:
        return format_html("{}, {} to {}{}", word, f"{least:,}", f"{most:,}", unit)
    if most is not None:
        return format_html("{}, at most {}{}", word, f"{most:,}", unit)
    return format_html("{}", word)


def _prose(text: str) -> SafeString:
    """Text whose `code` becomes code."""
    parts = _BACKTICKED.split(text)
    return format_html_join(
        "",
        "{}",
        ((format_html("<code>{}</code>", part) if index % 2 else part,) for index, part in enumerate(parts)),
    )


def _curl(method: str, path: str, body: str) -> str:
    address = path.replace("{run_id}", "$RUN").replace("{operation_id}", "$OPERATION")
    options = '-H "Authorization: Bearer $TOKEN"'
    if path.endswith("/events"):
        options = f"-N {options}"
    if path == "/v1/runs":
        options += ' \\\n  -H "Idempotency-Key: $(uuidgen)"'
    if body:
        compact = json.dumps(json.loads(body), ensure_ascii=False)
        options += f' \\\n  -H "Content-Type: application/json" -d {shlex.quote(compact)}'
    elif method == "POST":
        options = f"-X POST {options}"
    return f"curl $BASE{address} {options}"
