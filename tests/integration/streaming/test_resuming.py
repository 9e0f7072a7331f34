"""A stream may be cut anywhere: it goes on after the reader's position, without a gap and without a repeat."""

import threading
import time

import httpx
import pytest

from .conftest import Story
from .reading import address, page, seqs, stream


def test_every_cut_of_a_run_of_sixty_events_resumes_with_the_next_one(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(58)
    story.end()
    with httpx.Client(headers=home.headers, timeout=20) as client:
        for position in range(60):
            with client.stream(
                "GET", address(served.url, story.id), headers={"Last-Event-ID": str(position)}
            ) as response:
                ids = [int(line[4:]) for line in response.iter_lines() if line.startswith("id: ")]
            assert ids == list(range(position + 1, 61))


def test_a_reader_that_cuts_again_and_again_sees_each_event_once_while_they_are_written(served, house):
    home = house()
    story = Story(home.tenant)

    def tell() -> None:
        for _ in range(29):
            story.say(2)
            time.sleep(0.01)
        story.end()

    teller = threading.Thread(target=tell)
    teller.start()
    read: list[int] = []
    step = 1
    while not read or read[-1] < 60:
        with stream(served.url, story.id, home.headers, after=read[-1] if read else None) as events:
            for told in events:
                read.append(told.data["seq"])
                if len(read) % step == 0:
                    break
        step = step % 7 + 1
    teller.join()
    assert read == list(range(1, 61))


def test_a_stream_resumed_and_cut_three_times_without_news_keeps_its_position(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(41)
    for _ in range(3):
        with stream(served.url, story.id, home.headers, after=42) as events:
            events.beats(1)
    with stream(served.url, story.id, home.headers, after=42) as events:
        story.say(8)
        assert seqs(events.take(8)) == list(range(43, 51))


def test_the_header_wins_over_the_query(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(3)
    story.end()
    response = httpx.get(
        address(served.url, story.id), params={"after": 1}, headers=home.headers | {"Last-Event-ID": "4"}
    )
    assert "id: 5\n" in response.text
    assert "id: 4\n" not in response.text
    response = httpx.get(address(served.url, story.id), params={"after": 3}, headers=home.headers)
    assert "id: 4\n" in response.text
    assert "id: 3\n" not in response.text


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ("10", "older_than_kept"),
        ("9999", "beyond_the_end"),
        ("run_x:7", "unknown_position"),
        ("-1", "unknown_position"),
    ],
)
def test_a_place_that_is_not_there_is_told_and_the_stream_goes_on_from_the_oldest(
    served, house, position, reason
):
    home = house()
    story = Story(home.tenant)
    story.say(49)
    story.forget_before(43)
    for _ in range(2):
        with stream(served.url, story.id, home.headers, after=position) as events:
            reset, *rest = events.take(9)
            assert reset.event == "stream.reset"
            assert reset.id == "42"
            assert reset.data["data"] == {
                "reason": reason,
                "oldest_seq": 43,
                "last_event_seq": 50,
                "status": "queued",
                "blocked_on": [],
                "status_url": f"/v1/runs/{story.id}",
            }
            assert seqs(rest) == list(range(43, 51))
    refused = page(served.url, story.id, home.headers, after=position)
    assert (refused.status_code, refused.json()["code"]) == (400, reason)


def test_a_fresh_reader_of_a_run_whose_beginning_is_gone_is_told_so(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(9)
    story.forget_before(4)
    with stream(served.url, story.id, home.headers) as events:
        assert [told.event for told in events.take(2)] == ["stream.reset", "assistant.delta"]


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_the_last_event_ends_the_stream_and_a_reader_that_has_it_is_sent_away(served, house, status):
    home = house()
    story = Story(home.tenant)
    with stream(served.url, story.id, home.headers) as events:
        next(events)
        story.end(status)
        assert [told.event for told in events] == [f"run.{status}"]
        assert events.retry == "1000"
    again = httpx.get(address(served.url, story.id), headers=home.headers | {"Last-Event-ID": "2"})
    assert (again.status_code, again.content) == (204, b"")


def test_a_run_of_which_nothing_is_kept_ends_after_the_reset(served, house):
    home = house()
    story = Story(home.tenant)
    story.end()
    story.forget_before(3)
    with stream(served.url, story.id, home.headers, after=1) as events:
        assert [told.event for told in events] == ["stream.reset"]
    again = httpx.get(address(served.url, story.id), headers=home.headers | {"Last-Event-ID": "2"})
    assert again.status_code == 204


def test_a_long_run_is_read_over_many_pages_and_then_live(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(999)
    with stream(served.url, story.id, home.headers) as events:
        assert seqs(events.take(1000)) == list(range(1, 1001))
        begun = time.monotonic()
        story.say(1400)
        assert seqs(events.take(1400)) == list(range(1001, 2401))
        assert time.monotonic() - begun < 4  # seven looks, which do not wait for the poll
