"""What building .venv does, in a project of its own with next to nothing to install."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

LOCAL = Path(__file__).resolve().parents[3] / "agentops" / "local"


class Project:
    def __init__(self, root: Path) -> None:
        self.requirements = root / "requirements.txt"
        self.installs = root / "installs"
        self.python = root / ".venv" / "bin" / "python"
        self._programs = root / "bin"
        self._script = root / "agentops" / "local" / "bootstrap.py"
        self._script.parent.mkdir(parents=True)
        self._programs.mkdir()
        shutil.copy(LOCAL / "bootstrap.py", self._script)
        self.requirements.write_text("# nothing\n")

    def have_uv(self, exit_code: int) -> None:
        uv = self._programs / "uv"
        uv.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && exit 0\nsleep 0.3\necho >>{self.installs}\nexit {exit_code}\n'
        )
        uv.chmod(0o755)

    def build(self, **bent: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", self._script, "requirements.txt"],
            env={"PATH": f"{self._programs}:/usr/bin:/bin", "HOME": str(self._script.parent), **bent},
            capture_output=True,
            text=True,
            check=False,
        )

    def count_installs(self) -> int:
        return len(self.installs.read_text().splitlines())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_it_installs_once_and_again_only_when_the_pins_changed(project: Project) -> None:
    project.have_uv(exit_code=0)
    assert "installed in" in project.build().stdout
    assert project.build().stdout == ""
    assert project.count_installs() == 1
    project.requirements.write_text("# something else\n")
    project.build()
    assert project.count_installs() == 2


def test_two_at_once_install_once(project: Project) -> None:
    project.have_uv(exit_code=0)
    with ThreadPoolExecutor() as both:
        results = list(both.map(lambda _: project.build(), range(2)))
    assert [result.returncode for result in results] == [0, 0]
    assert project.count_installs() == 1


def test_a_venv_whose_python_is_gone_is_made_anew(project: Project) -> None:
    project.have_uv(exit_code=0)
    project.build()
    project.python.unlink()
    project.python.symlink_to("/nonexistent/python")
    assert project.build().returncode == 0
    assert os.access(project.python, os.X_OK)
    assert project.count_installs() == 2


def test_pip_takes_over_where_uv_fails_and_no_constraint_of_the_person_bends_it(project: Project) -> None:
    project.have_uv(exit_code=1)
    built = project.build(PIP_CONSTRAINT="/nonexistent/constraints.txt", PIP_USER="1", PIP_NO_INDEX="1")
    assert built.returncode == 0, built.stderr
    assert "trying pip" in built.stdout


def test_pins_that_cannot_be_had_are_told_with_the_next_step(project: Project) -> None:
    project.have_uv(exit_code=1)
    project.requirements.write_text("a-package-that-nobody-has==1\n")
    refused = project.build(PIP_NO_INDEX="1")
    assert refused.returncode == 1
    assert "could not be installed, see above: check the network" in refused.stderr.splitlines()[-1]
    assert not list(project.python.parents[1].glob("installed-*")), "it would count as installed"


def test_a_missing_browser_is_told_with_the_next_step() -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "agentops.local.browser"],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "apt-get install chromium" in refused.stdout
