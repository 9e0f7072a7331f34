"""One door for each thing that must not happen behind a back: status, lease, event, a provider's write, a lock."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from runs import events, leases
from runs.models import RunEvent, Step

ROOT = Path(__file__).resolve().parents[2]
STATEFUL = "runs_agentrun|operations_operation|approvals_approval"
# Each with its table; operations have leases of their own, which moves write.
LEASE = {"lease_owner", "lease_epoch", "lease_expires_at"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("agentops", "runs", "operations", "approvals"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "migrations" not in path.parts and "provider" not in path.parts:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def calls(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                yield node


def texts(tree: ast.Module) -> Iterator[str]:
    """Every literal text; of an f-string its fixed parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            yield " ".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def set_clauses(text: str) -> Iterator[str]:
    """What the UPDATE statements of `text` on a table with a status set."""
    for found in re.finditer(
        rf"UPDATE\s+(?:{STATEFUL})\b.*?\bSET\b(.*?)(?:\bWHERE\b|\bRETURNING\b|$)", text, re.S
    ):
        yield found.group(1)


def where(found: dict[str, object]) -> set[str]:
    return {path for path, any_found in found.items() if any_found}


def test_only_transitions_and_leases_write_a_status_or_a_version():
    found = {}
    for path, tree in modules():
        by_orm = [
            word
            for call in calls(tree, "update", "bulk_update", "update_or_create")
            for word in call.keywords
            if word.arg in ("status", "version")
        ]
        by_hand = [
            target
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AugAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute) and target.attr == "version"
        ]
        by_sql = [
            clause
            for text in texts(tree)
            for clause in set_clauses(text)
            if re.search(r"\b(status|version)\s*=", clause)
        ]
        found[path] = by_orm + by_hand + by_sql
    assert where(found) == {"agentops/kernel/transitions.py", "runs/leases.py"}


def test_only_leases_writes_the_lease_of_a_run():
    found = {}
    for path, tree in modules():
        if path.startswith("operations/"):
            continue
        by_orm = [
            word for call in calls(tree, "update", "swap") for word in call.keywords if word.arg in LEASE
        ]
        by_name = [
            key
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and key.value in LEASE
        ]
        by_sql = [
            clause
            for text in texts(tree)
            for clause in set_clauses(text)
            if "UPDATE runs_agentrun" in text and re.search("lease_", clause)
        ]
        found[path] = by_orm + by_name + by_sql
    assert where(found) == {"runs/leases.py"}


def test_only_events_writes_events():
    found = {}
    for path, tree in modules():
        made = [call for call in calls(tree, "RunEvent")]
        stored = [
            call
            for call in calls(tree, "create", "bulk_create", "get_or_create")
            if "RunEvent" in ast.unparse(call.func)
        ]
        found[path] = made + stored + [text for text in texts(tree) if "INTO runs_runevent" in text]
    assert where(found) == {"runs/events.py"}


def test_only_dispatch_sends():
    """Behind a connector's `send` stands the provider: it is called once in the whole product."""
    found = {}
    for path, tree in modules():
        found[path] = [call for call in calls(tree, "send") if isinstance(call.func, ast.Attribute)]
    senders = where(found) - {
        path for path in found if path.startswith(("agentops/streaming", "agentops/local"))
    }
    assert senders == {"operations/dispatch.py"}
    assert len(found["operations/dispatch.py"]) == 2  # an attempt, and what the contract test rehearses


def test_no_lock_makes_the_inserts_of_child_rows_wait():
    for path, tree in modules():
        for call in calls(tree, "select_for_update"):
            words = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert words.get("no_key") == "True", f"{path}:{call.lineno}"


STATEMENTS = {
    f"{module.__name__}.{name}": text
    for module in (leases, events)
    for name, text in vars(module).items()
    if name.isupper() and isinstance(text, str) and re.match(r"\s*(WITH|SELECT|UPDATE)", text)
} | {"runs.events._APPEND": events._APPEND}


@pytest.mark.django_db
@pytest.mark.parametrize("name", STATEMENTS)
def test_every_column_of_a_statement_exists_in_the_models(name):
    """PostgreSQL reads it, against tables that were made from the models."""
    places: dict[str, int] = {}
    text = re.sub(
        r"%\((\w+)\)s",
        lambda found: f"${places.setdefault(found.group(1), len(places) + 1)}",
        STATEMENTS[name],
    )
    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE a_statement AS {text}")
        cursor.execute("DEALLOCATE a_statement")


@pytest.mark.parametrize(
    ("model", "statement"), [(Step, leases.CHECKPOINT), (RunEvent, events.INSERT_FROM_RUN)]
)
def test_an_insert_names_every_column_that_the_model_needs(model, statement):
    named = re.search(rf"INSERT INTO {model._meta.db_table}[^(]*\(([^)]*)\)", statement)
    assert named
    columns = {column.strip() for column in named.group(1).split(",")}
    needed = {field.column for field in model._meta.concrete_fields if not field.null}
    assert needed <= columns
    assert columns <= {field.column for field in model._meta.concrete_fields}
