"""What a socket says last."""

import asyncio
import json
import threading
import time

from agentops.streaming.sockets import converse


async def test_an_answer_under_way_goes_out_before_the_close():
    asked = threading.Event()
    sent = []

    async def receive():
        if asked.is_set():
            await asyncio.Future()
        return {"type": "websocket.receive", "text": "cancel"}

    async def send(message):
        sent.append(message)

    def answer(text):
        asked.set()
        time.sleep(0.2)
        return {"answer": text}

    async def sending():
        await asyncio.to_thread(asked.wait)
        return 1000

    await converse(receive, send, sending(), answer)
    assert [message["type"] for message in sent] == ["websocket.send", "websocket.close"]
    assert json.loads(sent[0]["text"]) == {"answer": "cancel"}
