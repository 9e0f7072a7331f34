"""One running copy for all acceptance tests: a start costs seconds."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.stack import Stack


@pytest.fixture(scope="session")
def room() -> Iterator[Path]:
    # PostgreSQL does not run as root: its account must be able to enter, unlike pytest's own temporary folders.
    room = Path(
        tempfile.mkdtemp(prefix="agentops-acceptance-", dir="/var/tmp" if os.geteuid() == 0 else None)
    )
    room.chmod(0o711)
    yield room
    shutil.rmtree(room)


@pytest.fixture(scope="session")
def running(room: Path) -> Iterator[Stack]:
    stack = Stack(room / "data")
    stack.start()
    yield stack
    if stack.is_up:
        stack.press_ctrl_c()


@pytest.fixture
def stack(running: Stack) -> Stack:
    """The running copy, started again if the test before stopped or killed it."""
    if not running.is_up:
        running.start()
    return running
