"""Which Python builds .venv, and what is said where there is none."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BOOTSTRAP = ROOT / "agentops" / "local" / "bootstrap.sh"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of programs that holds a shell and no Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname"):
        (programs / name).symlink_to(shutil.which(name) or "")
    return programs


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def bootstrap(machine: Path) -> subprocess.CompletedProcess[str]:
    # Run by a copy, so that it cannot touch the project's own .venv.
    project = machine.parent / "project"
    (project / "agentops" / "local").mkdir(parents=True)
    copy = shutil.copy(BOOTSTRAP, project / "agentops" / "local")
    (project / "agentops" / "local" / "bootstrap.py").write_text(
        "import sys; print('built by', sys.version_info[:2])"
    )
    return subprocess.run(
        [machine / "sh", copy, "requirements.txt"],
        env={"PATH": str(machine), "HOME": str(machine.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_python_is_told_in_one_sentence_with_the_next_step(machine: Path) -> None:
    refused = bootstrap(machine)
    assert refused.returncode == 1
    assert "needs Python 3.12 or newer and found none: install one" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_python_that_is_too_old_counts_as_none(machine: Path) -> None:
    program(machine / "python3", "exit 1")
    assert "found none" in bootstrap(machine).stderr


def test_a_name_that_does_not_run_is_passed_over(machine: Path) -> None:
    program(machine / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    (machine / "python3").symlink_to(sys.executable)
    found = bootstrap(machine)
    assert found.stdout == f"built by {sys.version_info[:2]}\n"


def test_a_python_of_pyenv_is_found_without_its_shims(machine: Path) -> None:
    installed = machine.parent / ".pyenv" / "versions" / "3.13.0" / "bin"
    installed.mkdir(parents=True)
    (installed / "python3").symlink_to(sys.executable)
    assert bootstrap(machine).returncode == 0


def test_uv_alone_is_enough(machine: Path) -> None:
    program(machine / "uv", f'[ "$1" = --version ] || echo {sys.executable}')
    assert bootstrap(machine).returncode == 0


def test_a_uv_that_does_not_run_is_not_enough(machine: Path) -> None:
    program(machine / "uv", "echo 'pyenv: uv: command not found' >&2; exit 127")
    assert "found none" in bootstrap(machine).stderr


def test_pins_name_no_host_and_have_no_ranges() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text().splitlines():
            assert "://" not in line
            assert line.startswith("-r ") or "==" in line, line
