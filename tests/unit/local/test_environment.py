"""What a command is told that a person types beside a demo."""

import stat
from pathlib import Path

import pytest

from agentops.local.environment import keep, of_a_demo

TOLD = {"AGENTOPS_DEMO": "1", "DATABASE_URL": "postgresql://x", "AGENTOPS_MODEL": "offline", "PORT": "8001",
        "OPENAI_API_KEY": "k", "HOME": "/root"}  # fmt: skip


def test_a_command_is_told_what_the_demo_of_its_folder_was_told_and_no_other_secret(tmp_path: Path) -> None:
    keep(tmp_path, TOLD, is_demo=True)
    ours = {name: TOLD[name] for name in TOLD if name not in ("OPENAI_API_KEY", "HOME")}
    said = {"AGENTOPS_DATA": str(tmp_path), "AGENTOPS_MODEL": "openai:x"}
    assert of_a_demo(said) == ours | said
    assert stat.S_IMODE((tmp_path / "environment.json").stat().st_mode) == 0o600
    keep(tmp_path, TOLD, is_demo=True)  # the next start
    keep(tmp_path, TOLD | {"AGENTOPS_DEMO": "0"}, is_demo=False)
    assert of_a_demo(said) == {}, "a start that is no demo leaves none behind"


@pytest.mark.parametrize("name", ["AGENTOPS_DEMO", "AGENTOPS_SECRET_KEY", "DATABASE_URL", "REDIS_URL"])
def test_whoever_says_what_is_meant_is_told_nothing(tmp_path: Path, name: str) -> None:
    keep(tmp_path, TOLD, is_demo=True)
    assert of_a_demo({"AGENTOPS_DATA": str(tmp_path), name: ""}) == {}
    assert of_a_demo({"AGENTOPS_DATA": str(tmp_path / "elsewhere")}) == {}


def test_what_was_not_written_to_its_end_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"PORT": ')
    assert of_a_demo({"AGENTOPS_DATA": str(tmp_path)}) == {}
