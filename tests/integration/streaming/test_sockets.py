"""The sockets of the pages: the same events, cancel, and a bell for the inbox, for as long as one may see them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from agentops.tenancy.models import Membership, User
from tests import factories

from .conftest import Served, Story


def signed_in(person: User) -> str:
    """The cookie of a session of `person`."""
    session = SessionStore()
    session[SESSION_KEY] = str(person.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = person.get_session_auth_hash()
    session.create()
    return f"sessionid={session.session_key}"


@contextmanager
def socket(
    served: Served, path: str, *, cookie: str = "", token: str = "", origin: str | None = ""
) -> Iterator[Any]:
    headers = {"Cookie": cookie} if cookie else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    own = served.url if origin == "" else origin
    address = f"ws://127.0.0.1:{served.port}{path}"
    with connect(address, additional_headers=headers, origin=own, open_timeout=10) as opened:  # type: ignore[arg-type]
        yield opened


def frames(opened: ClientConnection, count: int) -> list[dict[str, Any]]:
    return [json.loads(opened.recv(timeout=10)) for _ in range(count)]


def code_of_close(opened: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            opened.recv(timeout=10)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_a_person_follows_a_run_from_a_place_to_its_end(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(4)
    cookie = signed_in(factories.person(home.tenant))
    with socket(served, f"/ws/runs/{story.id}?after=3", cookie=cookie) as opened:
        assert [frame["seq"] for frame in frames(opened, 2)] == [4, 5]
        story.say(1)
        story.end()
        rest = frames(opened, 2)
        assert [(frame["seq"], frame["type"]) for frame in rest] == [
            (6, "assistant.delta"),
            (7, "run.completed"),
        ]
        assert set(rest[0]) == {"run_id", "seq", "type", "at", "data"}
        assert code_of_close(opened) == 1000
    with socket(served, f"/ws/runs/{story.id}?after=7", cookie=cookie) as opened:
        assert code_of_close(opened) == 1000


def test_a_place_that_is_not_there_is_told_to_a_socket_too(served, house):
    home = house()
    story = Story(home.tenant)
    with socket(served, f"/ws/runs/{story.id}?after=900", token=home.token) as opened:
        reset, first = frames(opened, 2)
        assert (reset["type"], reset["data"]["reason"]) == ("stream.reset", "beyond_the_end")
        assert first["seq"] == 1


def test_strangers_are_turned_away_with_a_code_that_says_why(served, house):
    home, other = house(), house()
    story = Story(home.tenant)
    path = f"/ws/runs/{story.id}"
    outsider = signed_in(factories.person(other.tenant))
    inactive = factories.person(home.tenant)
    cookie = signed_in(inactive)
    User.objects.filter(pk=inactive.pk).update(is_active=False)
    no_longer_staff = factories.person(home.tenant)
    left = signed_in(no_longer_staff)
    User.objects.filter(pk=no_longer_staff.pk).update(is_staff=False)
    no_scope = factories.token(home.tenant, "usage:read")
    for credentials, code in [
        ({}, 4401),
        ({"cookie": "sessionid=invented"}, 4401),
        ({"cookie": cookie}, 4401),
        ({"cookie": left}, 4401),
        ({"token": "agops_invented"}, 4401),
        ({"token": no_scope}, 4403),
        ({"token": other.token}, 4404),
        ({"cookie": outsider}, 4404),
    ]:
        with socket(served, path, **credentials) as opened:
            assert code_of_close(opened) == code, credentials
    with socket(served, "/ws/runs/run_invented", token=home.token) as opened:
        assert code_of_close(opened) == 4404


@pytest.mark.parametrize("origin", [None, "http://elsewhere.example", "http://127.0.0.1:1", "null"])
def test_a_page_that_is_not_ours_cannot_use_a_persons_session(served, house, origin):
    home = house()
    story = Story(home.tenant)
    cookie = signed_in(factories.person(home.tenant))
    with (
        pytest.raises(InvalidStatus) as refused,
        socket(served, f"/ws/runs/{story.id}", cookie=cookie, origin=origin),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_an_unknown_address_is_refused(served, db):
    with pytest.raises(InvalidStatus), socket(served, "/ws/elsewhere"):
        pass


def test_a_token_needs_no_origin(served, house):
    home = house()
    story = Story(home.tenant)
    with socket(served, f"/ws/runs/{story.id}", token=home.token, origin=None) as opened:
        assert frames(opened, 1)[0]["type"] == "run.created"


def test_a_right_withdrawn_while_the_socket_is_open_closes_it(served, house):
    home = house()
    story = Story(home.tenant)
    person = factories.person(home.tenant)
    with socket(served, f"/ws/runs/{story.id}", cookie=signed_in(person)) as opened:
        frames(opened, 1)
        person.groups.clear()
        assert code_of_close(opened) == 4403


def test_signing_out_closes_the_sockets_of_that_session(served, house):
    home = house()
    story = Story(home.tenant)
    cookie = signed_in(factories.person(home.tenant))
    with socket(served, f"/ws/runs/{story.id}", cookie=cookie) as opened:
        frames(opened, 1)
        SessionStore(cookie.partition("=")[2]).flush()
        assert code_of_close(opened) == 4403


def test_cancel_is_answered_with_the_receipt_and_the_end_comes_as_an_event(served, house):
    home = house()
    story = Story(home.tenant)
    engineer = factories.person(home.tenant, Membership.Role.ENGINEER)
    with socket(served, f"/ws/runs/{story.id}?after=1", cookie=signed_in(engineer)) as opened:
        opened.send(json.dumps({"type": "cancel", "reason": "wrong order"}))
        told = {frame["type"]: frame for frame in frames(opened, 3)}
        assert set(told) == {"cancel.receipt", "run.cancel_requested", "run.cancelled"}
        assert told["cancel.receipt"] == {
            "type": "cancel.receipt",
            "run_id": story.id,
            "status": "cancelled",
            "requested_by": f"user:{engineer.pk}",
            "reason": "wrong order",
            "effects": [],
        }


def test_who_may_not_cancel_is_told_so_and_goes_on_reading(served, house):
    home = house()
    story = Story(home.tenant)
    reviewer = signed_in(factories.person(home.tenant))
    for credentials in ({"cookie": reviewer}, {"token": home.token}):
        with socket(served, f"/ws/runs/{story.id}?after=1", **credentials) as opened:
            opened.send(json.dumps({"type": "cancel"}))
            (refused,) = frames(opened, 1)
            assert (refused["type"], refused["problem"]["status"]) == ("problem", 403)
            deep = "[" * 16_000
            for nonsense in ("{", "[]", deep, '{"type": "approve"}', '{"type": "cancel", "reason": 7}'):
                opened.send(nonsense)
                assert frames(opened, 1)[0]["problem"]["status"] == 400
    story.say(1)
    assert type(story.run).objects.get(pk=story.run.pk).status == "queued"


def test_a_token_with_the_scope_cancels(served, house):
    home = house()
    story = Story(home.tenant)
    token = factories.token(home.tenant, "runs:read", "runs:write")
    with socket(served, f"/ws/runs/{story.id}?after=1", token=token) as opened:
        opened.send(json.dumps({"type": "cancel", "reason": "wrong\x00 order \ud83d"}))
        told = {frame["type"]: frame for frame in frames(opened, 3)}
        assert told["cancel.receipt"]["reason"] == "wrong\ufffd order ?"  # as a row can hold it
