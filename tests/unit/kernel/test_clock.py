"""Days in zones where an hour comes twice or never."""

from datetime import UTC, datetime

import pytest

from agentops.kernel.clock import day_start


@pytest.mark.parametrize(
    ("zone", "at", "begins"),
    [
        ("America/Havana", (2026, 11, 1, 4, 30), (2026, 11, 1, 4)),  # half past midnight
        ("America/Havana", (2026, 11, 1, 5, 30), (2026, 11, 1, 4)),  # and once more
        ("America/Havana", (2026, 11, 1, 20), (2026, 11, 1, 4)),
        ("Africa/Cairo", (2026, 4, 24, 12), (2026, 4, 23, 22)),  # there is no midnight: it begins at one
        ("Asia/Kathmandu", (2026, 1, 1, 18, 15), (2026, 1, 1, 18, 15)),
    ],
)
def test_a_day_begins_once(zone, at, begins):
    assert day_start(datetime(*at, tzinfo=UTC), zone).astimezone(UTC) == datetime(*begins, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "x\x00"])
def test_a_zone_that_is_none_is_said_so(zone):
    with pytest.raises(ValueError, match="no time zone"):
        day_start(datetime.now(UTC), zone)
