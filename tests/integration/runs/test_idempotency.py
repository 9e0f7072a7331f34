"""The rule that every door shares, raced: the first request is held open while others arrive."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection

from agentops.kernel.problems import Conflict, Invalid
from agentops.tenancy.access import create_tenant
from agentops.tenancy.principals import SCOPES, authenticate, issue
from runs.idempotency import Answer, once
from runs.models import IdempotencyKey

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_SECONDS = 10


@pytest.fixture
def principal():
    _, text = issue(create_tenant("acme", "Acme"), "test", SCOPES)
    return authenticate(text, "rest")


class Held:
    """A request whose work has begun and does not end before `finish`."""

    def __init__(self, principal, key, asked, *, fails=False):
        self.begun, self.end = threading.Event(), threading.Event()
        self.fails = fails
        self.pool = ThreadPoolExecutor(1)
        self.answer: Future[Answer] = self.pool.submit(self._send, principal, key, asked)
        assert self.begun.wait(WAIT_SECONDS)

    def _send(self, principal, key, asked):
        try:
            return once(principal, "POST /x", key, asked, self._work)
        finally:
            connection.close()

    def _work(self):
        self.begun.set()
        assert self.end.wait(WAIT_SECONDS)
        if self.fails:
            raise RuntimeError("the work failed")
        return Answer(201, b"first")

    def finish(self):
        self.end.set()
        self.pool.shutdown(wait=True)
        return self.answer


def elsewhere(work):
    """Do `work` on a connection of its own."""

    def closed():
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(closed).result()


def never():
    raise AssertionError("a second request began its work")


def test_the_same_request_in_flight_is_told_to_come_back_without_any_wait(principal):
    held = Held(principal, "k", {"a": 1})
    with pytest.raises(Conflict) as refused:
        once(principal, "POST /x", "k", {"a": 1}, never)
    held.finish()
    assert refused.value.code == "idempotency_in_flight"
    assert refused.value.headers["Retry-After"] == "1"


def test_another_body_is_refused_at_once_also_while_the_first_is_in_flight(principal):
    held = Held(principal, "k", {"a": 1})
    with pytest.raises(Invalid) as refused:
        once(principal, "POST /x", "k", {"a": 2}, never)
    held.finish()
    assert refused.value.code == "idempotency_key_reused"


def test_another_key_caller_or_route_is_not_held_up(principal):
    held = Held(principal, "k", {"a": 1})
    _, text = issue(principal.tenant, "other", SCOPES)
    other = authenticate(text, "rest")
    for caller, route, key in (
        (principal, "POST /x", "k2"),
        (principal, "POST /y", "k"),
        (other, "POST /x", "k"),
    ):
        assert once(caller, route, key, {"a": 1}, lambda: Answer(201, b"own")).body == b"own"
    held.finish()


def test_a_request_that_failed_leaves_its_key_to_anybody(principal):
    held = Held(principal, "k", {"a": 1}, fails=True)
    assert isinstance(held.finish().exception(), RuntimeError)
    assert once(principal, "POST /x", "k", {"a": 2}, lambda: Answer(201, b"second")).body == b"second"


def test_a_repeat_that_lost_its_lock_to_another_body_still_gets_the_stored_answer(principal):
    """It looks, the first one commits, a request with another body takes the key's lock, then it tries the lock."""
    once(principal, "POST /x", "k", {"a": 1}, lambda: Answer(201, b"first"))
    IdempotencyKey.objects.update(key="not committed yet")
    held = Held(principal, "k", {"a": 2}, fails=True)

    def first_commits_before_the_lock(execute, sql, params, many, context):
        if "pg_try_advisory" in sql:
            elsewhere(lambda: IdempotencyKey.objects.update(key="k"))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(first_commits_before_the_lock):
        answer = once(principal, "POST /x", "k", {"a": 1}, never)
    held.finish()
    assert (answer.body, answer.replayed) == (b"first", True)


def test_a_stored_answer_is_read_without_a_lock(principal):
    once(principal, "POST /x", "k", {"a": 1}, lambda: Answer(201, b"first", {"Location": "/x/1"}))
    with ThreadPoolExecutor(8) as pool:

        def repeat(_):
            try:
                return once(principal, "POST /x", "k", {"a": 1}, never)
            finally:
                connection.close()

        answers = list(pool.map(repeat, range(40)))
    assert {
        (answer.status, answer.body, answer.headers["Location"], answer.replayed) for answer in answers
    } == {(201, b"first", "/x/1", True)}
