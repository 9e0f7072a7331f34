"""The order of a start: servers, provider, schema, demo, then our own processes, until they answer."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from agentops.local import banner, environment, valkey
from agentops.local.children import Child
from agentops.local.folder import Folder
from agentops.local.ports import HOST, is_free
from agentops.local.postgres import Cluster
from agentops.local.processes import ROOT, SERVER_ENVIRONMENT
from agentops.local.supervisor import STOP_SIGNAL, Supervisor
from agentops.local.terminal import CannotStart, say, stage

_CELERY = (sys.executable, "-m", "celery", "--quiet", "-A", "agentops.celery")
_PORTS = ("postgres", "valkey", "provider", "payments", "shop")


def start(supervisor: Supervisor, folder: Folder, port: int) -> None:
    begun = time.monotonic()
    url = f"http://{HOST}:{port}/"
    is_demo = os.environ.get("AGENTOPS_DEMO", "1") == "1"
    say(f"starting, data in {folder.root} (Ctrl-C stops everything and loses nothing)")
    _try_own_servers()
    lost_lease_owner = supervisor.end_left_overs()
    _refuse_taken(port)  # not before: a web process that a killed supervisor left behind may still hold it
    ports = folder.ports(*_PORTS, avoid=port)
    told = environment.for_our_processes(
        data=folder.root,
        port=port,
        ports=ports,
        database_url=os.environ.get("DATABASE_URL") or _start_postgres(supervisor, folder, ports["postgres"]),
        redis_url=os.environ.get("REDIS_URL") or _start_valkey(supervisor, folder, ports["valkey"]),
        is_demo=is_demo,
    )
    environment.keep(folder.root, told, is_demo=is_demo)
    if is_demo:
        _start_provider(supervisor, told, ports)
    with stage("schema and static files"):
        static = _manage(supervisor, told, "collectstatic", "--noinput", "--verbosity", "0")
        supervisor.finish("migrate", _manage(supervisor, told, "migrate", "--noinput"))
        supervisor.finish("collectstatic", static)
    if is_demo:
        with stage("demo seed"):
            supervisor.finish("seed", _manage(supervisor, told, "seed"))
    if lost_lease_owner:
        _manage(supervisor, told, "hand_back_leases", lost_lease_owner)
    with stage("web, worker, beat"):
        _start_ours(supervisor, told)
    say(f"ready {url} ({time.monotonic() - begun:.0f} s)")
    for line in banner.lines(url, folder.root):
        say(line)


def _refuse_taken(port: int) -> None:
    try:
        free = is_free(port)
    except PermissionError as error:
        raise CannotStart(
            f"Port {port} is reserved for root: choose another, as in `make up PORT=8000`."
        ) from error
    if not free:
        other = next((number for number in range(port + 1, min(port + 100, 65536)) if is_free(number)), 8000)
        raise CannotStart(
            f"Port {port} is taken by another program: stop that one, or choose another port, "
            f"as in `make up PORT={other}`."
        )


def _start_postgres(supervisor: Supervisor, folder: Folder, port: int) -> str:
    with stage(f"PostgreSQL on port {port}"):
        cluster = Cluster(
            folder.root / "postgres",
            port=port,
            password=folder.secret("postgres"),
            log=folder.open_log("postgres"),
            durable=True,
        )
        cluster.prepare()
        child = supervisor.add(
            Child(
                "postgres",
                cluster.command,
                SERVER_ENVIRONMENT,
                is_shown=False,
                cwd=cluster.data.parent,
                account=cluster.account,
                stop_signal=STOP_SIGNAL["postgres"],
            )
        )
        supervisor.wait_until_ready(child, lambda: cluster.is_ready(child.pid))
    return cluster.url


def _start_valkey(supervisor: Supervisor, folder: Folder, port: int) -> str:
    with stage(f"Valkey on port {port}"):
        child = supervisor.add(
            Child("valkey", valkey.command(port, folder.root), SERVER_ENVIRONMENT, is_shown=False)
        )
        supervisor.wait_until_ready(child, lambda: valkey.is_ready(port))
    return valkey.url(port)


def _start_provider(supervisor: Supervisor, told: Mapping[str, str], ports: Mapping[str, int]) -> None:
    serve = (
        sys.executable, "-m", "agentops.demo.provider",
        "--port", str(ports["provider"]), "--payments-port", str(ports["payments"]), "--shop-port", str(ports["shop"]),
        "--books", f"{told['AGENTOPS_DATA']}/provider.db",
        "--jwks", f"{told['AGENTOPS_DATA']}/jwks.json",  # written by the seed, read when the first token comes in
    )  # fmt: skip
    with stage("payment provider and shop"):
        provider = supervisor.add(Child("provider", serve, told))
        supervisor.wait_until_ready(provider, lambda: _answers(told["AGENTOPS_PROVIDER_URL"] + "/_books"))


def _start_ours(supervisor: Supervisor, told: Mapping[str, str]) -> None:
    def hand_back(lease_owner: str) -> None:
        _manage(supervisor, told, "hand_back_leases", lease_owner)

    serve = (sys.executable, "manage.py", "serve", "--port", told["PORT"])
    work = (
        *_CELERY,
        "worker",
        "-P",
        "threads",
        "-c",
        "4",
        "--without-gossip",
        "--without-mingle",
        "-l",
        "info",
    )
    tick = (*_CELERY, "beat", "--pidfile=", "-s", f"{told['AGENTOPS_DATA']}/beat.db")
    web = supervisor.add(Child("web", serve, told))
    supervisor.add(Child("worker", work, told, hand_back=hand_back))
    supervisor.add(Child("beat", tick, told))
    supervisor.wait_until_ready(web, lambda: _answers(told["AGENTOPS_BASE_URL"] + "/readyz"))


def _manage(
    supervisor: Supervisor, told: Mapping[str, str], command: str, *words: str
) -> subprocess.Popen[bytes]:
    # The system checks cost a second or two each time and say nothing that `make check` has not said.
    argv = (sys.executable, "manage.py", command, "--skip-checks", *words)
    return supervisor.errand(command, argv, told)


def _try_own_servers() -> None:
    if os.environ.get("DATABASE_URL") or os.environ.get("REDIS_URL"):
        tried = subprocess.run(
            (sys.executable, "-m", "agentops.local.reach"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode != 0:
            raise CannotStart(tried.stdout.strip() or tried.stderr.strip())


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
