"""Fifty requests at one instant, over real sockets and a thread each."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import httpx
import pytest

from runs.models import AgentRun, RunEvent

pytestmark = pytest.mark.django_db(transaction=True)
REFUND = {"agent": "support-agent", "input": "Please refund A-1002."}
COUNT = 50


def at_once(server, caller, key_of, body_of):
    connecting, ready = Lock(), Barrier(COUNT)

    def send(number):
        headers = {"Authorization": f"Bearer {caller.token}", "Idempotency-Key": key_of(number)}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            with connecting:  # one after the other: the server's queue of new connections is short
                client.get("/healthz")
            ready.wait()
            return client.post("/v1/runs", json=body_of(number), headers=headers)

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(send, range(COUNT)))


def test_fifty_identical_starts_make_one_run(live_server, caller):
    answers = at_once(live_server, caller, lambda _: "same", lambda _: REFUND)
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {201, 409}
    assert statuses[201] >= 1
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    assert (
        sum("Idempotency-Replayed" not in answer.headers for answer in answers if answer.status_code == 201)
        == 1
    )
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 409)
    assert AgentRun.objects.count() == RunEvent.objects.count() == 1


def test_fifty_starts_with_one_business_key_make_one_run(live_server, caller):
    answers = at_once(live_server, caller, str, lambda _: REFUND | {"dedupe_key": "A-1002"})
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: COUNT - 1}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert AgentRun.objects.count() == RunEvent.objects.count() == 1


def test_of_fifty_bodies_under_one_key_one_is_taken(live_server, caller):
    answers = at_once(live_server, caller, lambda _: "same", lambda number: REFUND | {"input": f"A-{number}"})
    assert Counter(answer.status_code for answer in answers) == {201: 1, 422: COUNT - 1}
    assert AgentRun.objects.count() == 1
