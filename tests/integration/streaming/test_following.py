"""Following within one process, step by step: rows first, then the tail, each event once."""

import asyncio
from contextlib import aclosing

from django.db import connection

from agentops.streaming.database import CONNECTIONS, in_database
from agentops.streaming.follow import follow
from agentops.streaming.frames import page
from agentops.streaming.tail import UNREAD_FRAMES, Tail
from runs.hints import Hints

from .conftest import Story, backends


def test_a_reader_ahead_of_the_tail_is_not_told_twice_and_one_that_fell_behind_reads_the_rows(house):
    story = Story(house().tenant)
    story.say(9)

    async def go():
        tail = Tail(Hints())
        held = tail.enter(3)
        tail.join(story.run.id, held)  # the tail stands at 3, the follower will have read the rows up to 10
        async with aclosing(follow(tail, story.run.id, 0, lambda: True)) as events:
            assert [(await anext(events)).seq for _ in range(10)] == list(range(1, 11))
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0.2)
            await in_database(story.say, 2)
            tail.deliver(story.run.id, 3, await in_database(page, story.run.id, 3))
            assert (await waiting).seq == 11
            # While it holds 11, far more comes than it may leave unread.
            await in_database(story.say, UNREAD_FRAMES + 100)
            tail.deliver(story.run.id, 12, await in_database(page, story.run.id, 12))
            tail.deliver(story.run.id, 212, await in_database(page, story.run.id, 212))
            rest = [(await anext(events)).seq for _ in range(UNREAD_FRAMES + 101)]
            assert rest == list(range(12, UNREAD_FRAMES + 113))
        tail.leave(story.run.id, held)

    asyncio.run(go())


def test_events_written_between_the_last_page_and_the_join_are_not_missed(house):
    story = Story(house().tenant)

    async def go():
        tail = Tail(Hints())
        running = asyncio.create_task(tail.run())
        async with aclosing(follow(tail, story.run.id, 0, lambda: True)) as events:
            seen = [(await anext(events)).seq]
            await in_database(story.say, 3)  # the follower has its page and has not joined yet
            seen += [(await asyncio.wait_for(anext(events), 5)).seq for _ in range(3)]
            assert seen == [1, 2, 3, 4]
        running.cancel()

    asyncio.run(go())


def test_no_thread_keeps_its_connection_between_two_reads(db):
    async def go():
        for _ in range(2 * CONNECTIONS):
            assert await in_database(lambda: connection.connection) is None
            await in_database(backends)

    asyncio.run(go())
