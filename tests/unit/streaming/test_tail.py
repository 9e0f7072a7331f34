"""What the tail hands to whom: no gap where a reader joins, a bound on what it leaves unread."""

import asyncio

import pytest

from agentops.kernel.ids import uuid7
from agentops.streaming.frames import Frame
from agentops.streaming.rounds import Rounds
from agentops.streaming.tail import UNREAD_CHARACTERS, UNREAD_FRAMES, Tail
from runs.hints import Hints

RUN = uuid7()


def frames(first: int, last: int, text: str = "{}") -> list[Frame]:
    return [Frame(seq, "assistant.delta", text) for seq in range(first, last + 1)]


async def taken(reader) -> list[int]:
    return [frame.seq for frame in await reader.take(0)]


@pytest.fixture
def tail():
    return Tail(Hints())


async def test_a_reader_behind_the_tail_is_not_live_until_it_has_read_the_rows(tail):
    first, late = tail.enter(10), tail.enter(5)
    tail.join(RUN, first)
    tail.deliver(RUN, 10, frames(11, 12))
    tail.join(RUN, late)
    assert not late.live
    late.seq = 12
    tail.join(RUN, late)
    assert late.live
    tail.deliver(RUN, 12, frames(13, 13))
    assert await taken(first) == [11, 12, 13]
    assert await taken(late) == [13]


async def test_rows_looked_for_from_another_place_are_not_handed_on(tail):
    gone, come = tail.enter(3), tail.enter(9)
    tail.join(RUN, gone)
    tail.leave(RUN, gone)  # while the query for what follows 3 is under way
    tail.join(RUN, come)
    tail.deliver(RUN, 3, frames(4, 6))
    assert await taken(come) == []
    tail.deliver(RUN, 9, frames(10, 10))
    assert await taken(come) == [10]


@pytest.mark.parametrize(
    "unread",
    [frames(1, UNREAD_FRAMES + 1), frames(1, 2, "w" * (UNREAD_CHARACTERS // 2 + 1))],
    ids=["many", "large"],
)
async def test_a_reader_that_leaves_too_much_unread_keeps_nothing_and_goes_back_to_the_rows(tail, unread):
    slow, quick = tail.enter(0), tail.enter(0)
    for reader in (slow, quick):
        tail.join(RUN, reader)
    tail.deliver(RUN, 0, unread[:1])
    assert await taken(quick) == [1]
    tail.deliver(RUN, 1, unread[1:])
    assert not slow.live
    assert await taken(slow) == []
    assert quick.live
    tail.deliver(RUN, unread[-1].seq, frames(unread[-1].seq + 1, unread[-1].seq + 1))
    assert await taken(slow) == []


async def test_closing_wakes_every_reader(tail):
    reader = tail.enter(0)
    tail.join(RUN, reader)
    waiting = asyncio.create_task(reader.take(60))
    await asyncio.sleep(0)
    tail.close()
    assert await asyncio.wait_for(waiting, 1) == []


async def test_a_hint_is_looked_at_at_once_and_everything_once_an_interval():
    rounds = Rounds[str](0.05)
    assert await rounds.next({"a", "b"}) == {"a", "b"}
    rounds.hint("b")
    rounds.hint("b")
    assert await rounds.next({"a", "b"}) == {"b"}
    assert await rounds.next({"a", "b"}) == {"a", "b"}


async def test_hints_without_end_do_not_put_off_the_look_at_everything():
    rounds = Rounds[str](0.05)
    await rounds.next({"a"})
    until = asyncio.get_running_loop().time() + 0.5
    seen: set[str] = set()
    while "quiet" not in seen:
        assert asyncio.get_running_loop().time() < until
        rounds.hint("busy")
        await asyncio.sleep(0.001)
        seen |= await rounds.next({"busy", "quiet"})
