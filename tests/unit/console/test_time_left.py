"""The time left, in words; the browser's countdown says the same (`left` in shell.js)."""

from datetime import timedelta

import pytest

from agentops.console.templatetags.console import left


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "time is up"),
        (0, "time is up"),
        (0.2, "1 s left"),
        (59, "59 s left"),
        (272, "4 min 32 s left"),
        (300, "5 min left"),
        (3_599, "59 min left"),
        (86_040, "23 h 54 min left"),
    ],
)
def test_time_left_is_up_only_when_it_is_up(seconds: float, words: str) -> None:
    assert left(timedelta(seconds=seconds)) == words
