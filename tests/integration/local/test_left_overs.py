"""What a start does with the processes of a supervisor that was killed, where the kernel did not end them."""

import signal
import subprocess
import sys
from pathlib import Path

from agentops.local.folder import Folder

END_LEFT_OVERS = """
import pathlib, sys
from agentops.local.folder import Folder
from agentops.local.supervisor import Supervisor
print(Supervisor(Folder(pathlib.Path(sys.argv[1]))).end_left_overs())
"""


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def test_they_are_ended_and_their_leases_are_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    web, worker, stranger = sleeper(), sleeper(), sleeper()
    folder.note_start("web", web.pid)
    folder.note_start("worker", worker.pid, "the worker's token")
    noted = folder.noted()
    ended = subprocess.run(
        [sys.executable, "-c", END_LEFT_OVERS, tmp_path / "data"], capture_output=True, text=True, check=True
    )
    assert web.wait(timeout=5) == worker.wait(timeout=5) == -signal.SIGTERM
    assert ended.stdout.splitlines()[-1] == "the worker's token"
    assert f"ending web (process {web.pid})" in ended.stdout
    assert noted.keys().isdisjoint(folder.noted())
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_later_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    stranger = sleeper()
    folder.note_start("web", stranger.pid)
    notes = tmp_path / "data" / "children.json"
    notes.write_text(
        notes.read_text().replace(f'"born": "{folder.noted()["web"].born}"', '"born": "long ago"')
    )
    subprocess.run([sys.executable, "-c", END_LEFT_OVERS, tmp_path / "data"], check=True)
    assert stranger.poll() is None
    assert "web" not in folder.noted()
    stranger.kill()
    stranger.wait()
