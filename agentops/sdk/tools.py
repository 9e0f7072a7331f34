"""`@tool` turns a typed function into what a model may call: a schema, a declared effect, and a binding of arguments."""

import hashlib
import inspect
import json
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentops.sdk.context import ToolContext
from agentops.sdk.errors import InvalidArguments, InvalidResult, Terminal, ToolDefinitionError
from agentops.sdk.text import is_storable, repaired, repaired_json

Effect = Literal["reads", "repeatable", "proposes", "undeclared"]

MAX_ARGUMENTS_CHARS = 65_536
MAX_RESULT_CHARS = 262_144  # of a result as JSON: it is kept, and read by the model in every later turn
MAX_COMPLAINT_CHARS = 2_000
MAX_COMPLAINTS = 10

_TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ACTION = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


class _Schema(GenerateJsonSchema):
    """Without a title per field, which only repeats the name and costs tokens on every turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. Make one with `@tool`."""

    name: str
    description: str
    effect: Effect
    proposes: tuple[str, ...]
    timeout_seconds: float
    expose: bool
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    digest: str
    _fn: Callable[..., Any] = field(repr=False)
    _arguments: type[BaseModel] = field(repr=False)
    _result: TypeAdapter[Any] = field(repr=False)

    def __call__(self, ctx: ToolContext, **arguments: Any) -> Any:
        return self._fn(ctx, **arguments)

    def bind(self, raw_args: dict[str, Any] | str) -> dict[str, Any]:
        """The function's arguments from what a model wrote; `InvalidArguments` with the schema's complaint."""
        text = _canonical_arguments(self.name, raw_args)
        try:
            bound = self._arguments.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InvalidArguments(_complaint(self.name, error)) from None
        return {name: getattr(bound, name) for name in self._arguments.model_fields}

    def dump(self, result: Any) -> Any:
        """A result as JSON, held to the declared type; text that cannot be stored is repaired."""
        try:
            value = self._result.dump_python(self._result.validate_python(result), mode="json")
        except ValidationError as error:
            raise InvalidResult(_complaint(self.name, error)) from None
        return kept(f"The result of {self.name}", value)


def kept(what: str, value: Any) -> Any:
    """A JSON value as the journal keeps it: text that cannot be stored is repaired. Raises InvalidResult where it is too long."""
    if len(json.dumps(value, ensure_ascii=False)) > MAX_RESULT_CHARS:
        raise InvalidResult(f"{what} is longer than {MAX_RESULT_CHARS} characters: ask for less.")
    return repaired_json(value)


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    reads: bool = False,
    repeatable: bool = False,
    proposes: str | Sequence[str] = (),
    timeout_seconds: float = 60,
    expose: bool = True,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    reads: bool = False,
    repeatable: bool = False,
    proposes: str | Sequence[str] = (),
    timeout_seconds: float = 60,
    expose: bool = True,
    name: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Declare a tool and its effect; without one it is never repeated after a crash in the middle.

    `reads`: changes nothing. `repeatable`: safe as a whole, its effects sit in `ctx.step`. `proposes`: its effects are
    operations of these actions. `expose=False` hides it from MCP.
    """
    actions = (proposes,) if isinstance(proposes, str) else tuple(proposes)

    def define(function: Callable[..., Any]) -> Tool:
        return _define(
            function,
            name=name or function.__name__,
            effect=_effect(name or function.__name__, reads, repeatable, actions),
            proposes=actions,
            timeout_seconds=timeout_seconds,
            expose=expose,
        )

    return define if fn is None else define(fn)


def _effect(name: str, reads: bool, repeatable: bool, proposes: tuple[str, ...]) -> Effect:
    declared: list[Effect] = []
    if reads:
        declared.append("reads")
    if repeatable:
        declared.append("repeatable")
    if proposes:
        declared.append("proposes")
    if len(declared) > 1:
        raise ToolDefinitionError(
            f"Tool {name} declares {' and '.join(declared)}: keep the one that is true, they exclude each other."
        )
    for action in proposes:
        if not _ACTION.fullmatch(action):
            raise ToolDefinitionError(
                f"Tool {name} proposes {action!r}: name an action with dots, like refund.create."
            )
    return declared[0] if declared else "undeclared"


def _define(
    function: Callable[..., Any],
    *,
    name: str,
    effect: Effect,
    proposes: tuple[str, ...],
    timeout_seconds: float,
    expose: bool,
) -> Tool:
    if not _TOOL_NAME.fullmatch(name):
        raise ToolDefinitionError(f"Tool {name!r}: use a name of lower-case letters, digits and underscores.")
    if inspect.iscoroutinefunction(function):
        raise ToolDefinitionError(f"Tool {name} is async: write a plain def, it runs on a thread of its own.")
    if timeout_seconds <= 0:
        raise ToolDefinitionError(
            f"Tool {name} has timeout_seconds={timeout_seconds}: give it more than zero."
        )
    description = inspect.getdoc(function)
    if not description:
        raise ToolDefinitionError(f"Tool {name} has no docstring: write one, it is what the model reads.")
    arguments, result = _types(name, function)
    input_schema = _object_schema(name, "arguments", TypeAdapter(arguments), "validation")
    output_schema = _object_schema(name, "result", result, "serialization")
    definition = {
        "name": name,
        "description": description,
        "effect": effect,
        "proposes": proposes,
        "timeout_seconds": timeout_seconds,
        "input_schema": input_schema,
        "output_schema": output_schema,
    }
    return Tool(
        name=name,
        description=description,
        effect=effect,
        proposes=proposes,
        timeout_seconds=timeout_seconds,
        expose=expose,
        input_schema=input_schema,
        output_schema=output_schema,
        digest=digest_of(definition),
        _fn=function,
        _arguments=arguments,
        _result=result,
    )


def _types(name: str, function: Callable[..., Any]) -> tuple[type[BaseModel], TypeAdapter[Any]]:
    """The model of the arguments and the adapter of the result, from the annotations."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"Tool {name} has an annotation that cannot be resolved ({error}): import the type at module level."
        ) from error
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].name != "ctx":
        raise ToolDefinitionError(f"Tool {name} must take `ctx: ToolContext` as its first parameter: add it.")
    fields: dict[str, Any] = {}
    for parameter in parameters[1:]:
        _check_parameter(name, parameter, hints)
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], _described(default))
    if "return" not in hints:
        raise ToolDefinitionError(f"Tool {name} has no return annotation: say which object it returns.")
    try:
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        return arguments, TypeAdapter(hints["return"])
    except (PydanticUserError, TypeError) as error:
        raise ToolDefinitionError(
            f"Tool {name} uses a type without a JSON Schema ({type(error).__name__}): use plain types or a model."
        ) from error


def _check_parameter(name: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ToolDefinitionError(f"Tool {name}: spell out parameter {parameter}, a model needs named ones.")
    if parameter.name not in hints:
        raise ToolDefinitionError(
            f"Tool {name}: annotate parameter {parameter.name}, its schema comes from it."
        )
    if parameter.name.startswith("_") or hasattr(BaseModel, parameter.name):
        raise ToolDefinitionError(f"Tool {name}: rename parameter {parameter.name}, that name is taken.")


def _described(default: Any) -> Any:
    return default if isinstance(default, FieldInfo) else Field(default)


def _object_schema(
    name: str, side: str, adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]
) -> dict[str, Any]:
    try:
        schema = adapter.json_schema(mode=mode, schema_generator=_Schema)
    except PydanticUserError as error:
        raise ToolDefinitionError(
            f"Tool {name}: its {side} cannot be written as JSON Schema: use plain types or a model."
        ) from error
    if schema.get("type") != "object":
        raise ToolDefinitionError(
            f"Tool {name}: its {side} must be a JSON object: use a pydantic model or a TypedDict."
        )
    schema.pop("title", None)
    if side == "result":
        schema.pop("description", None)
    return schema


def _canonical_arguments(name: str, raw_args: dict[str, Any] | str) -> str:
    """Arguments as one plain JSON text: an object, no key twice, nothing that cannot be stored."""
    try:
        text = raw_args if isinstance(raw_args, str) else json.dumps(raw_args)
        if len(text) > MAX_ARGUMENTS_CHARS:
            raise InvalidArguments(
                f"Arguments of {name} are longer than {MAX_ARGUMENTS_CHARS} characters: send less."
            )
        value = json.loads(text or "{}", object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise InvalidArguments(f"Arguments of {name} must be a JSON object with named values.")
        _refuse_unstorable(name, value)
        return json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArguments(
            f"Arguments of {name} are not well-formed JSON: send one JSON object."
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a key stands twice")
    return unique


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _refuse_unstorable(name: str, value: Any) -> None:
    match value:
        case str() if not is_storable(value):
            raise InvalidArguments(f"Arguments of {name} hold a NUL or half a character: send plain text.")
        case dict():
            for key, item in value.items():
                _refuse_unstorable(name, key)
                _refuse_unstorable(name, item)
        case list():
            for item in value:
                _refuse_unstorable(name, item)


def _complaint(name: str, error: ValidationError) -> str:
    """Where and what is wrong, never the value itself: it may be long, hostile or secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{'.'.join(str(part)[:60] for part in fault['loc']) or name}: {fault['msg']}" for fault in faults
    ]
    more = f"; and {len(lines) - MAX_COMPLAINTS} more" if len(lines) > MAX_COMPLAINTS else ""
    return repaired(f"{name}: {'; '.join(lines[:MAX_COMPLAINTS])}{more}")[:MAX_COMPLAINT_CHARS]


def require_repeatable(tool: Tool, *effects: Effect) -> None:
    """Raises Terminal where `tool` may not be unwound and called again, as it is while it waits."""
    if tool.effect not in effects:
        raise Terminal(
            f"{tool.name} would be called again after this wait, and does not declare that it may be.",
            code="not_repeatable",
        )


def digest_of(definition: Any) -> str:
    """`sha256:` of a definition in one fixed JSON form."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
