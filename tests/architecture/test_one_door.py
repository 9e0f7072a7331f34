"""One door for each thing that must not happen behind a back: status, lease, event, a provider's write, a lock."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import connection

from agentops.engine.apps import START
from agentops.engine.doors import reaching_out
from agentops.sdk.agents import agents, separate_registry
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


TO_COLLEAGUES = ("approvals/notices.py",)  # mail to reviewers: no provider, no effect


def test_only_dispatch_sends():
    """Behind a connector's `send` stands the provider: it is called once in the whole product."""
    found = {}
    for path, tree in modules():
        found[path] = [call for call in calls(tree, "send") if isinstance(call.func, ast.Attribute)]
    others = ("agentops/streaming", "agentops/local", *TO_COLLEAGUES)
    senders = {path for path in where(found) if not path.startswith(others)}
    assert senders == {"operations/dispatch.py"}
    assert len(found["operations/dispatch.py"]) == 2  # an attempt, and what the contract test rehearses


CLIENTS = {"httpx", "requests", "aiohttp", "stripe", "smtplib", "urllib3"}
# Who may speak to the outside, and to whom: providers, models, and the demo's reads of its shop.
# The SDK's client only reads.
SPEAKERS = ("operations/connectors/", "agentops/llm/", "agentops/demo/", "agentops/sdk/http.py")


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_only_connectors_speak_to_providers():
    for path, tree in modules():
        names = set(imported(tree))
        clients = {name for name in names if name.split(".")[0] in CLIENTS or name == "django.core.mail"}
        is_known = path.startswith((*SPEAKERS, *TO_COLLEAGUES))
        assert not clients or is_known, f"{path}: {clients}"
        inner = {name for name in names if re.match(r"operations\.connectors\.(?!base$|registry$)", name)}
        assert not inner or path.startswith("operations/connectors/"), f"{path}: {inner}"


def test_only_the_contract_test_rehearses_and_only_it_makes_trials():
    found = {}
    for path, tree in modules():
        of_connectors = [call for call in calls(tree, "trial") if isinstance(call.func, ast.Attribute)]
        found[path] = [
            *calls(tree, "rehearse"),
            *of_connectors,
        ]  # rules have a trial of their own, a plain function
    assert where(found) == {"operations/contract.py"}


def test_the_agents_that_are_here_reach_no_provider_but_by_an_operation():
    assert reaching_out(agents()) == []


WAYS_ROUND = {
    "from operations.connectors.registry import CONNECTORS": "leads to a connector",
    "from operations import dispatch": "leads to a connector",
    "from agentops.engine import settle": "leads to a connector",
    "import stripe": "can be written to",
    "from django.core import mail": "can be written to",
    "import importlib": "can be written to",
    "eval('1')": "can be written to",
    "import httpx": "writes with httpx (.post)",
}


@pytest.mark.parametrize("line", WAYS_ROUND)
def test_a_tool_that_could_reach_a_provider_in_a_step_fails_the_start(line, tmp_path, monkeypatch):
    """It proposes refunds, as it should, and a helper of its package can do them past the ledger."""
    name = f"round_{abs(hash(line))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    helper = f"def pay(step):\n    {line}\n    httpx.post('https://provider.example')\n"
    (tmp_path / name / "helper.py").write_text(helper)
    tool = (
        "from agentops.sdk import Agent, Receipt, ToolContext, tool\nfrom . import helper\n"
        "@tool(proposes='refund.create')\ndef refund(ctx: ToolContext) -> Receipt:\n    'Refund.'\n"
        "    return ctx.step('pay', helper.pay)\nAgent('round', instructions='x', tools=[refund])\n"
    )
    (tmp_path / name / "agent.py").write_text(tool)
    monkeypatch.syspath_prepend(tmp_path)
    with separate_registry():
        import_module(f"{name}.agent")
        said = [error.msg for error in run_checks(tags=[START]) if error.id == "engine.E002"]
    assert said
    for fault in said:
        assert f"Tool refund of agent round: {name}.helper" in fault
    assert WAYS_ROUND[line] in said[0]


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
