"""`make up` as a person meets it: what it says, what it survives, what it leaves behind."""

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.acceptance.stack import NAMES, ROOT, Stack, environment, eventually, free_port, is_alive
from tests.acceptance.story import Story

WISH = "My order A-1001 arrived damaged, please refund it."


def make_up(**changes: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to be refused."""
    words = [f"{name}={value}" for name, value in changes.items() if not name.endswith("_URL")]
    urls = {name: value for name, value in changes.items() if name.endswith("_URL")}
    return subprocess.run(
        ["make", "up", *words], cwd=ROOT, env=environment(**urls), capture_output=True, text=True, timeout=60
    )


def test_what_it_prints_below_ready_can_be_used_as_it_stands(stack: Stack) -> None:
    _, ready, below = stack.output.partition(f"\nready {stack.url}/")
    assert ready
    for path in ("/healthz", "/readyz", "/admin/login/", "/v1/docs"):
        assert stack.request(path)[0] == 200, path
    for account in stack.demo["accounts"]:
        assert account["name"] in below
        assert account["password"] in below
    curl = shlex.split(below[below.index("curl -s ") : below.index("follow it")].replace("\\\n", " "))
    headers = dict(word.split(": ", 1) for flag, word in pairwise(curl) if flag == "-H")
    status, answer = stack.request(
        curl[2].removeprefix(stack.url), body=json.loads(curl[curl.index("-d") + 1]), **headers
    )
    assert status == 201, answer


def test_every_process_is_noted_by_its_number(stack: Stack) -> None:
    assert all(is_alive(psutil.Process(stack.pid(name))) for name in NAMES)


def test_a_second_start_on_the_same_folder_names_the_copy_that_runs(stack: Stack) -> None:
    refused = make_up(PORT=str(free_port()), AGENTOPS_DATA=str(stack.data))
    assert refused.returncode != 0
    assert f"pid {stack.pid('supervisor')}, {stack.url}/" in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


def test_a_taken_port_is_refused_with_the_next_step(room: Path) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = make_up(PORT=str(port), AGENTOPS_DATA=str(room / "refused"))
    assert refused.returncode != 0
    assert f"Port {port} is taken" in refused.stdout
    assert "make up PORT=" in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


@pytest.mark.parametrize("folder", ["/dev/null/data", "/proc/data"])
def test_a_folder_that_cannot_be_written_is_refused_with_the_next_step(folder: str) -> None:
    refused = make_up(PORT=str(free_port()), AGENTOPS_DATA=folder)
    assert refused.returncode != 0
    assert f"AGENTOPS_DATA={folder} cannot be written" in refused.stdout
    assert "make up AGENTOPS_DATA=" in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("DATABASE_URL", "postgresql://nobody:nothing@127.0.0.1:1/nowhere"),
        ("DATABASE_URL", "mysql://nobody:nothing@127.0.0.1:1/nowhere"),
        ("REDIS_URL", "redis://127.0.0.1:1/0"),
        ("REDIS_URL", "http://127.0.0.1:1/0"),
    ],
)
def test_a_server_that_cannot_be_reached_is_refused_with_the_next_step(
    room: Path, name: str, url: str
) -> None:
    refused = make_up(PORT=str(free_port()), AGENTOPS_DATA=str(room / "refused"), **{name: url})
    assert refused.returncode != 0
    assert f"{name} does not work" in refused.stdout
    assert "unset it" in refused.stdout
    assert "nothing@" not in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


def test_a_killed_worker_is_started_again_and_its_leases_are_handed_back_at_once(stack: Stack) -> None:
    story = Story(stack)
    order = story.order(2_490)
    owner = json.loads((stack.data / "children.json").read_text())["worker"]["lease_owner"]
    killed = stack.pid("worker")
    calls = story.provider("/_books")["calls"]
    story.fault("slow", seconds=8, times=1)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    with psycopg.connect(stack.demo["database_url"], autocommit=True) as database:

        def leases() -> int:
            return sum(
                database.execute(f"SELECT FROM {table} WHERE lease_owner = %s", [owner]).rowcount
                for table in ("runs_agentrun", "operations_operation")
            )

        eventually(
            lambda: story.provider("/_books")["calls"] > calls and leases(), 20, "a request on its way"
        )
        os.kill(killed, signal.SIGKILL)
        # Far longer than this test: who goes on now does so because the leases came back, not because they ran out.
        for table in ("runs_agentrun", "operations_operation"):
            database.execute(
                f"UPDATE {table} SET lease_expires_at = lease_expires_at + interval '1 hour' WHERE lease_owner = %s",
                [owner],
            )
        eventually(
            lambda: "worker died (signal 9), starting again in" in stack.output, 5, "a word on the terminal"
        )
        eventually(lambda: not leases(), 30, "the dead worker's leases")
    assert story.ended(run_id, seconds=60)["status"] == "completed"
    assert stack.pid("worker") != killed
    assert len(story.refunds(order)) == 1


@pytest.mark.parametrize("name", ["postgres", "valkey", "web"])
def test_a_killed_server_is_started_again_and_work_goes_on(stack: Stack, name: str) -> None:
    """In the middle of a run, which goes on without a person. What Valkey knew is gone: it keeps nothing on disk."""
    story, killed = Story(stack), stack.pid(name)
    order = story.order(2_490)
    calls = story.provider("/_books")["calls"]
    story.fault("slow", seconds=2, times=1)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    eventually(lambda: story.provider("/_books")["calls"] > calls, 20, "a request on its way")
    os.kill(killed, signal.SIGKILL)
    eventually(
        lambda: f"{name} died (signal 9), starting again in" in stack.output, 5, "a word on the terminal"
    )
    eventually(lambda: (stack.data / "pids" / f"{name}.pid").exists(), 40, "another one")
    eventually(lambda: stack.answers("/readyz"), 30, "an answer")
    assert stack.pid(name) != killed
    assert story.ended(run_id, seconds=90)["status"] == "completed"
    assert len(story.refunds(order)) == 1


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_continues(stack: Stack) -> None:
    run_id = Story(stack).start(WISH)
    before = stack.demo
    processes = stack.processes()
    stack.kill_supervisor()
    # A worker has ten seconds for what it has under way; on a busy machine twenty were not enough for all of them.
    eventually(lambda: not any(map(is_alive, processes)), 40, "an end of every process")
    stack.start()
    after = stack.demo
    assert all(order in after["orders"] for order in before["orders"])
    assert {**after, "orders": []} == {**before, "orders": []}
    assert stack.request(f"/v1/runs/{run_id}", stack.demo["tokens"]["acme"])[0] == 200


@pytest.fixture(scope="module")
def other(room: Path) -> Iterator[Stack]:
    other = Stack(room / "other")
    other.start()
    yield other
    if other.is_up:
        other.press_ctrl_c()


def test_two_copies_run_side_by_side(stack: Stack, other: Stack) -> None:
    ours, theirs = stack.demo, other.demo
    for address in ("base_url", "provider_url", "shop_url", "database_url"):
        assert ours[address] != theirs[address]
    assert stack.answers("/readyz")
    assert other.answers("/readyz")
    run_id = Story(other).start(WISH)
    assert other.request(f"/v1/runs/{run_id}", theirs["tokens"]["acme"])[0] == 200
    assert stack.request(f"/v1/runs/{run_id}", ours["tokens"]["acme"])[0] == 404


def test_ctrl_c_stops_everything_in_order_also_with_an_open_stream(other: Stack) -> None:
    run_id = Story(other).start(WISH)
    processes = other.processes()
    with other.open_stream(f"/v1/runs/{run_id}/events", other.demo["tokens"]["acme"]):
        code, ended = other.press_ctrl_c()
    assert code in (0, -signal.SIGINT)  # some makes end by the signal themselves
    assert set(ended[:2]) == {"beat", "worker"}
    assert ended[2:6] == ["web", "provider", "valkey", "postgres"]
    eventually(lambda: not any(map(is_alive, processes)), 1, "an end of every process")
    assert list((other.data / "pids").iterdir()) == []
    assert "did not stop in time" not in other.output
    assert "database system is shut down" in (other.data / "logs" / "postgres.log").read_text()[-200:]
    assert "Error" not in other.output.splitlines()[-1]
