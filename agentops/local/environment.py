"""What our processes are told: every variable that the supervisor hands to them, in one place."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from agentops.local.ports import HOST
from agentops.local.processes import ROOT

_OWN = frozenset({"AGENTOPS_DEMO", "AGENTOPS_SECRET_KEY", "DATABASE_URL", "REDIS_URL"})


def for_our_processes(
    *, data: Path, port: int, ports: Mapping[str, int], database_url: str, redis_url: str, is_demo: bool
) -> dict[str, str]:
    environment = dict(os.environ)
    if not os.environ.get("DATABASE_URL"):
        # PGSSLMODE, PGSERVICE and the like belong to the person's own servers, not to the one we start.
        environment = {name: value for name, value in environment.items() if not name.startswith("PG")}
    if os.geteuid() == 0:
        # The person chose to be root; Celery would say so in ten lines at each start of the worker.
        environment["PYTHONWARNINGS"] = "ignore::UserWarning:celery.platforms"
    for name in ("NO_PROXY", "no_proxy"):
        # A company's HTTP proxy must not carry what we say to ourselves.
        environment[name] = ",".join(filter(None, (environment.get(name), HOST, "localhost")))
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "AGENTOPS_DEMO": "1" if is_demo else "0",
        "AGENTOPS_DATA": str(data),
        "AGENTOPS_BASE_URL": f"http://{HOST}:{port}",
        "AGENTOPS_MAIL_DIR": str(data / "mail"),
        "PORT": str(port),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
    }
    if is_demo:
        environment |= {
            f"AGENTOPS_{name.upper()}_URL": f"http://{HOST}:{ports[name]}"
            for name in ("provider", "payments", "shop")
        }
    return environment


def keep(data: Path, told: Mapping[str, str], *, is_demo: bool) -> None:
    """Leave in the folder what a demo's processes are told, for commands that a person types beside them."""
    path = _kept(data)
    path.unlink(missing_ok=True)
    if is_demo:
        ours = {name: told[name] for name in told if name.startswith("AGENTOPS_") or name in _OWN | {"PORT"}}
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(ours, file, indent=2)


def of_a_demo(environ: Mapping[str, str]) -> dict[str, str]:
    """What the demo in AGENTOPS_DATA was told at its last start; nothing where the person says themselves what is meant."""
    if _OWN & environ.keys():
        return {}
    try:
        told: dict[str, str] = json.loads(
            _kept(ROOT / (environ.get("AGENTOPS_DATA") or ".agentops")).read_text()
        )
    except (OSError, ValueError):  # none, or one that was not written to its end
        return {}
    return told | dict(environ)


def _kept(data: Path) -> Path:
    return data / "environment.json"
