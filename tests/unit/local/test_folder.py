"""AGENTOPS_DATA: one supervisor at a time, and what the next start finds."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentops.local import ports
from agentops.local.folder import Folder
from agentops.local.processes import born
from agentops.local.terminal import CannotStart, Tail


def test_the_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    first = Folder(tmp_path / "data")
    first.lock("http://127.0.0.1:8000/")
    with pytest.raises(CannotStart, match=rf"pid {os.getpid()}, http://127.0.0.1:8000/"):
        Folder(tmp_path / "data").lock("http://127.0.0.1:8001/")


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    take_and_die = (
        "import os, pathlib, sys; from agentops.local.folder import Folder; folder = Folder(pathlib.Path(sys.argv[1]));"
        "folder.lock('http://127.0.0.1:8000/'); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", take_and_die, tmp_path / "data"], check=False)
    assert died.returncode == -9
    Folder(tmp_path / "data").lock("http://127.0.0.1:8001/")


def test_a_second_start_has_the_ports_of_the_first(tmp_path: Path) -> None:
    first = Folder(tmp_path / "data").ports("postgres", "valkey", avoid=8000)
    assert Folder(tmp_path / "data").ports("postgres", "valkey", avoid=8000) == first


def test_a_port_that_another_program_took_meanwhile_is_replaced(tmp_path: Path) -> None:
    first = Folder(tmp_path / "data").ports("postgres", "valkey", avoid=8000)
    with ports.socket.create_server((ports.HOST, first["postgres"])):
        second = Folder(tmp_path / "data").ports("postgres", "valkey", avoid=8000)
    assert second["postgres"] != first["postgres"]
    assert second["valkey"] == first["valkey"]


def test_the_persons_own_port_is_never_chosen_for_a_server(tmp_path: Path) -> None:
    kept = Folder(tmp_path / "data").ports("postgres", avoid=8000)["postgres"]
    assert Folder(tmp_path / "data").ports("postgres", avoid=kept)["postgres"] != kept


def test_a_port_that_is_listened_to_on_all_addresses_is_not_free() -> None:
    with ports.socket.create_server(("0.0.0.0", 0)) as other:
        assert not ports.is_free(other.getsockname()[1])


def test_a_secret_stays_the_same_and_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    secret = Folder(tmp_path / "data").secret("postgres")
    assert Folder(tmp_path / "data").secret("postgres") == secret
    assert stat.S_IMODE((tmp_path / "data/secrets/postgres").stat().st_mode) == 0o600


def test_a_noted_process_is_alive_only_while_it_is_the_same_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    sleeper = subprocess.Popen(["sleep", "60"])
    folder.note_start("web", sleeper.pid)
    folder.note_start("worker", os.getpid(), "token")
    noted = folder.noted()
    assert noted["web"].is_alive
    assert noted["worker"].lease_owner == "token"
    sleeper.kill()
    sleeper.wait()
    assert not noted["web"].is_alive
    later_one = type(noted["worker"])(os.getpid(), "another time")
    assert not later_one.is_alive


def test_leases_that_were_not_handed_back_are_seen_by_the_next_start(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    folder.note_start("worker", os.getpid(), "token")
    folder.note_end("worker", owes_leases=True)
    assert not list((tmp_path / "data/pids").iterdir())
    assert folder.noted()["worker"].lease_owner == "token"


def test_a_zombie_has_ended() -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert born(zombie.pid) is None
    zombie.wait()


def test_a_log_over_the_limit_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    log = folder.open_log("web")
    with log.open("wb") as file:
        file.truncate(11 * 1024 * 1024)
    assert folder.open_log("web").stat().st_size == 0
    assert log.with_suffix(".log.1").stat().st_size == 11 * 1024 * 1024


def test_a_tail_shows_whole_new_lines_with_the_childs_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "web.log"
    log.write_text("of the last start\n")
    tail = Tail("web", log)
    with log.open("a") as file:
        file.write("first\nsec")
        file.flush()
        tail.pump()
        file.write("ond\n")
    tail.pump()
    assert capsys.readouterr().out == "web | first\nweb | second\n"
