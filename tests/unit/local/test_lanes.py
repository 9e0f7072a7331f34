"""Commands side by side: each is heard whole, and one that failed fails all."""

import subprocess
import sys


def lanes(*commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentops.local.lanes", *commands], capture_output=True, text=True, timeout=20
    )


def test_all_lanes_are_heard_and_all_well_is_zero():
    said = lanes("echo first", "echo second")
    assert said.returncode == 0
    assert "first" in said.stdout
    assert "second" in said.stdout


def test_one_lane_that_failed_fails_all_and_the_others_still_end():
    for commands in (("exit 3", "echo second"), ("echo first", "echo second; exit 4")):
        said = lanes(*commands)
        assert said.returncode == 1
        assert "failed" in said.stdout


def test_lanes_run_side_by_side(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    meet = "touch {0}; for i in $(seq 100); do test -e {1} && exit 0; sleep 0.05; done; exit 1"
    assert lanes(meet.format(here, there), meet.format(there, here)).returncode == 0
