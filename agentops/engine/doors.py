"""A start refuses agents whose tools could reach a provider past the ledger: what their code imports and calls is read."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentops.sdk.agents import Agent

OURS = ("operations", "approvals", "runs", "agentops")  # but the SDK, and what the author's own package has
SDK = "agentops.sdk"
# Clients that can write, and ways to get at one unseen. httpx may be imported, to read with.
CLIENTS = frozenset(
    {"aiohttp", "django", "ftplib", "http.client", "importlib", "requests", "smtplib", "socket", "stripe", "subprocess",
     "urllib.request", "urllib3"}
)  # fmt: skip
WRITES = frozenset({"post", "put", "patch", "delete", "request", "send", "stream"})


def reaching_out(agents: Iterable[Agent]) -> list[str]:
    """One sentence for each way round `ctx.operation` that the code of a tool has, `ctx.step` included."""
    found: dict[str, None] = {}
    for agent in agents:
        for tool in agent.tools:
            for module, fault in _faults(tool._fn.__module__):
                found[f"Tool {tool.name} of agent {agent.name}: {module} {fault}"] = None
    return list(found)


def _faults(module: str) -> Iterator[tuple[str, str]]:
    """Faults of a module and of all that it uses of its own package."""
    package = module.rpartition(".")[0] or module
    seen, left = set(), [module]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        tree = _read(name)
        imported = set(_imports(tree, name)) if tree else set()
        for used in sorted(imported):
            if _is_within(used, package):
                left.append(used)
            elif why := _why_not(used):
                yield name, why
        if tree and any(_is_within(used, "httpx") for used in imported):
            yield from ((name, f"writes with httpx (.{verb}). {_INSTEAD}") for verb in sorted(_written(tree)))


_INSTEAD = "Propose the change with ctx.operation."


def _why_not(used: str) -> str:
    if _is_within(used, SDK):
        return ""
    if any(_is_within(used, ours) for ours in OURS):
        return f"imports {used}, which leads to a connector. Import agentops.sdk alone."
    if any(_is_within(used, client) for client in CLIENTS):
        return f"imports {used}, by which a provider can be written to. {_INSTEAD}"
    return ""


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _read(name: str) -> ast.Module | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return ast.parse(Path(file).read_text()) if file and file.endswith(".py") else None


def _imports(tree: ast.Module, name: str) -> Iterator[str]:
    """Every name that is imported, wherever in the module; `from a import b` as both a and a.b where b is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: -node.level]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (
                f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in sys.modules
            )
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("__import__", "eval", "exec"):
            yield "importlib"


def _written(tree: ast.Module) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES
    }
