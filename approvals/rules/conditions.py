"""A condition made ready once: checked by our own grammar and types, written anew in full brackets, compiled by CEL."""

from collections.abc import Mapping
from dataclasses import dataclass

import cel

from .checking import NO_CURRENCY, check
from .grammar import Binary, Call, Choice, Elements, Faulty, Literal, Many, Node, Unary, Variable, parse
from .variables import Kind, fits


class CannotEvaluate(Exception):
    """It has no answer for these values; whoever asks denies."""


@dataclass(frozen=True)
class Condition:
    """`reads` and `asks_for` are paths of variables; CEL sees each as one flat name, so nothing else is handed over."""

    program: cel.Program
    reads: frozenset[str]
    asks_for: frozenset[str]


def lint(text: str, known: Mapping[str, Kind]) -> list[Faulty]:
    """Every fault of a condition, those of its grammar first; empty where it can be evaluated."""
    try:
        faults = check(parse(text), known).faults
    except Faulty as fault:
        return [fault]
    if not faults:
        try:
            ready(text, known)
        except Faulty as fault:
            return [fault]
    return sorted(faults, key=lambda fault: fault.at)


def ready(text: str, known: Mapping[str, Kind]) -> Condition:
    """Raises Faulty. A currency that was forgotten is a matter of lint: the amount is compared as it is written."""
    tree = parse(text)
    checked = check(tree, known)
    for fault in checked.faults:
        if fault.code != NO_CURRENCY:
            raise fault
    try:
        program = cel.compile(_written(tree))
    except ValueError as error:
        raise Faulty(0, "not_cel", f"CEL refuses it: {str(error)[:200]}") from None
    return Condition(program, frozenset(checked.reads), frozenset(checked.asks_for))


def context_of(
    paths: frozenset[str], asked_for: frozenset[str], values: Mapping[str, object], known: Mapping[str, Kind]
) -> cel.Context:
    """The values of these variables as CEL sees them, each of its own type. Raises CannotEvaluate.

    What is missing is left out: a condition that comes to need it has no answer.
    """
    flat: dict[str, object] = {f"has_{_flat(path)}": path in values for path in asked_for}
    for path in paths:
        if path in values:
            if not fits(known[path], values[path]):
                raise CannotEvaluate(f"{path} is no {known[path].value}")
            flat[_flat(path)] = value = values[path]
            if isinstance(value, str):
                flat[_size(path)] = len(value)
    return cel.Context(flat)


def holds(condition: Condition, context: cel.Context) -> bool:
    """Raises CannotEvaluate; never anything else, so that no fault of a library lets something through."""
    try:
        answer = condition.program.execute(context)
    except Exception as error:
        raise CannotEvaluate(type(error).__name__) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # how a fault in Rust comes up
            raise
        raise CannotEvaluate("PanicException") from error
    if answer is not True and answer is not False:
        raise CannotEvaluate("no condition")
    return answer


def _flat(path: str) -> str:
    return path.replace(".", "__")


def _size(path: str) -> str:
    return f"size_{_flat(path)}"


def _written(node: Node) -> str:
    """The same in CEL, every part in brackets: what was checked and what is evaluated are one, whoever parses it.

    Two things are written in other words, since the library does not do what CEL says: it counts a text's bytes and not its
    characters, and the negation of the least number is no overflow to it.
    """
    match node:
        case Literal(_, bool() as value):
            return "true" if value else "false"
        case Literal(_, int() as value):
            return str(value)
        case Literal(_, str() as value):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case Variable(_, path):
            return _flat(path)
        case Elements(_, items):
            return f"[{', '.join(_written(item) for item in items)}]"
        case Call(_, "has", (Variable(_, path),)):
            return f"has_{_flat(path)}"
        case Call(_, "size", (asked,)):
            return _written_size(asked)
        case Call(_, name, (asked, word)):
            return f"({_written(asked)}).{name}({_written(word)})"
        case Unary(_, "-", operand):
            return f"(0 - {_written(operand)})"
        case Unary(_, op, operand):
            return f"({op}({_written(operand)}))"
        case Binary(_, op, left, right):
            return f"({_written(left)} {op} {_written(right)})"
        case Many(_, op, parts):
            return f"({f' {op} '.join(_written(part) for part in parts)})"
        case Choice(_, condition, yes, no):
            return f"({_written(condition)} ? {_written(yes)} : {_written(no)})"
    raise AssertionError(f"no CEL for {node}")


def _written_size(text: Node) -> str:
    match text:
        case Literal(_, str() as value):
            return str(len(value))
        case Variable(_, path):
            return _size(path)
        case Choice(_, condition, yes, no):
            return f"({_written(condition)} ? {_written_size(yes)} : {_written_size(no)})"
    raise AssertionError(f"no text: {text}")
