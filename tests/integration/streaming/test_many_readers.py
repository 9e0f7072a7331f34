"""Many readers cost neither database connections nor memory without bound, and one that does not read is cut off."""

import asyncio
import socket as sockets
import threading
from pathlib import Path

import httpx
import pytest

from agentops.streaming.database import in_database

from .conftest import Story, asking, backends, open_streams, wait_for
from .reading import seqs, stream

POOL = 12


def status(pid: int, name: str) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{name}:")[1].split()[0])


def test_two_hundred_idle_streams_hold_no_connection_and_no_thread_and_all_hear_the_news(served, house):
    home = house()
    story = Story(home.tenant)

    async def watch():
        opened = await open_streams(served, home, story, 200)
        assert await in_database(backends) <= POOL + 4  # our own reading counts too
        assert status(served.process.pid, "Threads") < 60
        async with httpx.AsyncClient(base_url=served.url, timeout=10) as client:
            # Were a connection held by any twelve of them, no request could have one now.
            answers = await asyncio.gather(*(client.get("/readyz") for _ in range(POOL)))
        assert {answer.status_code for answer in answers} == {200}
        await in_database(story.say, 1)
        await in_database(story.end)
        told = await asyncio.gather(*(reader.readuntil(b"event: run.completed") for reader, _ in opened))
        assert all(text.count(b"event: assistant.delta") == 1 for text in told)
        for _, writer in opened:
            writer.close()

    asyncio.run(watch())


def test_readers_that_come_and_go_leave_nothing_behind(served, house):
    home = house()
    story = Story(home.tenant)

    async def come_and_go():
        for _ in range(8):
            for _, writer in await open_streams(served, home, story, 25):
                writer.transport.abort()

    asyncio.run(come_and_go())
    wait_for(lambda: len(list(Path(f"/proc/{served.process.pid}/fd").iterdir())) < 60)
    with stream(served.url, story.id, home.headers) as events:
        story.say(1)
        assert seqs(events.take(2)) == [1, 2]


def test_a_reader_that_does_not_read_costs_little_and_is_cut_off_and_comes_back(served, house):
    home = house()
    story = Story(home.tenant)
    with sockets.socket() as stubborn, stream(served.url, story.id, home.headers) as attentive:
        read: list[int] = []

        def say_and_read(batches: int) -> None:
            reading = threading.Thread(target=lambda: read.extend(seqs(attentive.take(50 * batches))))
            reading.start()
            for _ in range(batches):
                story.say(50, text="w" * 20_000)  # 1 MB
            reading.join(30)

        say_and_read(8)  # what serving such events costs at all
        stubborn.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        stubborn.connect(("127.0.0.1", served.port))
        stubborn.sendall(asking(home, story))
        assert stubborn.recv(100)
        before_kilobytes = status(served.process.pid, "VmRSS")
        say_and_read(24)
        assert read == list(range(1, 1601))
        assert status(served.process.pid, "VmRSS") - before_kilobytes < 16_000
        with pytest.raises(OSError):
            wait_for(lambda: stubborn.sendall(b"x"))  # until the connection is no more
    with stream(served.url, story.id, home.headers, after=1590) as events:
        assert seqs(events.take(10)) == list(range(1591, 1601))
