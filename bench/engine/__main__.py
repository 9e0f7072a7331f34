"""Measures the engine on the reference workload, on a PostgreSQL of its own that flushes every commit: counts, then rates.

    python -m bench.engine [--runs 200] [--rounds 3] [--peers FOLDER --peers-python PYTHON --peer absurd:queue:4 …]

Counts do not depend on the machine: they are differences between a small and a larger number of runs. Rates do: only their
ratio to a peer counts, measured in turns in the same minutes on the same server. A peer is run by FOLDER/harness.py.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from agentops.local import valkey
from agentops.local.ports import HOST, find_free
from agentops.local.postgres import Cluster
from agentops.local.processes import SERVER_ENVIRONMENT, spawn

FEW = 20
COUNTERS = """
SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
  (SELECT wal_bytes FROM pg_stat_wal), (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'),
  pg_database_size(current_database())
"""
OURS = ("ours, start to end", "ours, driving alone")
NAMES = ("transactions", "wal_bytes", "wal_flushes", "growth_bytes")


@contextmanager
def servers() -> Iterator[tuple[Cluster, dict[str, str]]]:
    room = Path(tempfile.mkdtemp(prefix="agentops-bench-", dir="/var/tmp" if os.geteuid() == 0 else None))
    room.chmod(0o711)
    taken: set[int] = set()
    log = room / "postgres.log"
    cluster = Cluster(
        room / "postgres", port=find_free(taken), password=secrets.token_hex(8), log=log, durable=True
    )
    cluster.prepare()
    started = [
        spawn(
            cluster.command,
            env=SERVER_ENVIRONMENT,
            log=log,
            dies_with_us=signal.SIGQUIT,
            account=cluster.account,
            cwd=cluster.data,
        )
    ]
    port = find_free({cluster.port})
    started.append(spawn(valkey.command(port, room), env=SERVER_ENVIRONMENT, log=room / "valkey.log"))
    try:
        while not (cluster.is_ready(started[0].pid) and valkey.is_ready(port)):
            time.sleep(0.05)
        told = {
            "DATABASE_URL": cluster.url,
            "REDIS_URL": valkey.url(port),
            "AGENTOPS_DATA": str(room / "data"),
            "AGENTOPS_DEMO": "1",
            "AGENTOPS_LOG_JSON": "0",
            "DJANGO_SETTINGS_MODULE": "agentops.settings",
        }
        yield cluster, os.environ | told
    finally:
        for server in started:
            server.send_signal(signal.SIGTERM if server is not started[0] else signal.SIGQUIT)
            server.wait(timeout=20)
        shutil.rmtree(room, ignore_errors=True)


def counters(cluster: Cluster) -> dict[str, float]:
    time.sleep(1.0)  # a session reports what it did when it has ended
    with psycopg.connect(cluster.url, autocommit=True) as conn:
        row = conn.execute(COUNTERS).fetchone()
    assert row is not None
    return {name: float(value) for name, value in zip(NAMES, row, strict=True)}


def ours(cluster: Cluster, env: dict[str, str], runs: int) -> dict[str, float]:
    before = counters(cluster)
    command = [sys.executable, "-m", "bench.engine.reference", str(runs)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    figures: dict[str, float] = json.loads(said.splitlines()[-1])
    assert not figures["wrong"], figures
    after = counters(cluster)
    return figures | {name: after[name] - before[name] for name in NAMES}


def counts(cluster: Cluster, env: dict[str, str], runs: int) -> dict[str, float]:
    """What one more run costs."""
    few, many = ours(cluster, env, FEW), ours(cluster, env, FEW + runs)
    names = (*NAMES, "statements", "driver_statements", "cpu_seconds")
    return {name: (many[name] - few[name]) / runs for name in names}


def peer(cluster: Cluster, args: argparse.Namespace, case: str, runs: int) -> float:
    """Runs a second of one sample of a peer."""
    name, mode, at_once = case.split(":")
    password = cluster.url.split("@")[0].rpartition(":")[2]
    told = {
        "PEERS_PGHOST": HOST,
        "PEERS_PGPORT": str(cluster.port),
        "PEERS_PGUSER": "agentops",
        "PGPASSWORD": password,
        "PEERS_TMP": tempfile.gettempdir(),
    }
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        options = [
            "--mode",
            mode,
            "--conc",
            at_once,
            "--procs",
            "1",
            "--runs",
            str(runs),
            "--fresh",
            "--out",
            out.name,
        ]
        command = [args.peers_python, "harness.py", name, *options]
        subprocess.run(command, cwd=args.peers, env=os.environ | told, check=True, stdout=subprocess.DEVNULL)
        sample: dict[str, Any] = json.loads(out.read().splitlines()[-1])
    return float(sample["runs_s"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="a folder with harness.py and peer_NAME.py")
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument(
        "--peer", action="append", default=[], help="name:mode:concurrency; may be given again"
    )
    args = parser.parse_args()
    with servers() as (cluster, env):
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, check=True)
        print("one run costs")
        for name, value in counts(cluster, env, args.runs).items():
            print(f"  {name:18} {value:10.3f}")
        rates: dict[str, list[float]] = {name: [] for name in (*OURS, *args.peer)}
        for _ in range(args.rounds):
            sample = ours(cluster, env, args.runs)
            for name, measure in zip(OURS, ("seconds", "drain_seconds"), strict=True):
                rates[name].append(sample["runs"] / sample[measure])
            for case in args.peer:
                rates[case].append(peer(cluster, args, case, args.runs))
        print("runs a second, one process, median (least-most)")
        for name, values in rates.items():
            print(f"  {name:20} {statistics.median(values):7.1f} ({min(values):.1f}-{max(values):.1f})")
        for case in args.peer:
            ratios = (statistics.median(rates[name]) / statistics.median(rates[case]) for name in OURS)
            print(f"  ours / {case}: " + ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
