"""The tables of docs/policy.md, made from what the code really takes."""

import re
from collections.abc import Iterable, Sequence

from operations.connectors.registry import ACTIONS

from .shape import Rule
from .variables import MEASURES, PLAIN, SCOPES, WINDOWS, of_fact

_TABLE = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.S)


def written(text: str) -> str:
    """`text` with each table between `<!-- name -->` and `<!-- end -->` as it is now."""
    tables = {"fields": _fields, "variables": _variables, "history": _history, "facts": _facts}
    return _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]()}{found[3]}", text)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _fields() -> str:
    rows = [
        (f"`{name}`", "yes" if field.is_required() else "", field.description or "")
        for name, field in Rule.model_fields.items()
    ]
    return _rows(("field", "needed", "what it says"), rows)


def _variables() -> str:
    rows = [(f"`{path}`", said.kind.value, said.words) for path, said in PLAIN.items()]
    return _rows(("variable", "type", "what it is"), rows)


def _history() -> str:
    parts = {
        "scope": SCOPES,
        "window": WINDOWS,
        "measure": {name: f"{said.words} ({said.kind.value})" for name, said in MEASURES.items()},
    }
    rows = [(part, f"`{name}`", words) for part, names in parts.items() for name, words in names.items()]
    return _rows(("part", "name", "what it is"), rows)


def _facts() -> str:
    rows = [
        (f"`{action.name}`", f"`target.{name}`", of_fact(name, holds).value)
        for action in ACTIONS.values()
        for name, holds in sorted(action.facts.items())
    ]
    return _rows(("action", "variable", "type"), rows)
