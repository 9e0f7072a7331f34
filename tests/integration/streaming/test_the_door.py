"""Who may read a run's events, how they are asked for, and what is answered where they cannot be had."""

import hashlib
import json

import httpx
import pytest

from agentops.kernel.clock import Now
from agentops.tenancy.models import ApiToken
from tests import factories

from .conftest import Story
from .reading import address, page, stream


def test_the_stream_is_not_to_be_stored_or_buffered_and_each_line_says_what_it_is(served, house):
    home = house()
    story = Story(home.tenant)
    with stream(served.url, story.id, home.headers) as events:
        assert events.response.headers["content-type"] == "text/event-stream"
        assert events.response.headers["cache-control"] == "no-cache, no-transform"
        assert events.response.headers["x-accel-buffering"] == "no"
        assert "server" not in events.response.headers
        told = next(events)
        assert told.data["run_id"] == story.id
        assert set(told.data) == {"run_id", "seq", "type", "at", "data"}
        assert told.data["at"].endswith("Z")
        assert told.data["data"]["agent"] == "support-agent"


def test_a_silent_stream_says_that_it_is_there(served, house):
    home = house()
    story = Story(home.tenant)
    with stream(served.url, story.id, home.headers) as events:
        next(events)
        events.beats(2)


def test_a_foreign_run_and_an_unknown_one_are_answered_alike(served, house):
    home, other = house(), house()
    story = Story(other.tenant)
    headers = home.headers | {"X-Request-ID": "ask-1"}
    for run_id in (story.id, "run_00000000000000000000000000", "run_x", "apr_1"):
        assert page(served.url, run_id, home.headers).status_code == 404
        with httpx.stream("GET", address(served.url, run_id), headers=headers) as response:
            assert response.status_code == 404
            problem = json.loads(response.read())
        assert response.headers["content-type"] == "application/problem+json"
        assert problem["code"] == "not_found"
        assert problem["request_id"] == response.headers["x-request-id"] == "ask-1"


def test_without_a_token_or_its_scope_nothing_is_told(served, house):
    home = house()
    story = Story(home.tenant)
    missing = httpx.get(address(served.url, story.id))
    assert missing.status_code == 401
    assert missing.headers["www-authenticate"].startswith("Bearer")
    narrow = factories.token(home.tenant, "usage:read")
    refused = httpx.get(address(served.url, story.id), headers={"Authorization": f"Bearer {narrow}"})
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    posted = httpx.post(address(served.url, story.id), headers=home.headers)
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET")


def test_a_token_revoked_while_the_stream_is_open_ends_it(served, house):
    home = house()
    story = Story(home.tenant)
    text = factories.token(home.tenant, "runs:read")
    with stream(served.url, story.id, {"Authorization": f"Bearer {text}"}) as events:
        next(events)
        ApiToken.objects.filter(hash=hashlib.sha256(text.encode()).digest()).update(revoked_at=Now())
        assert list(events) == []


def test_pages_of_json_lead_to_the_end(served, house):
    home = house()
    story = Story(home.tenant)
    story.say(149)
    first = page(served.url, story.id, home.headers).json()
    assert [item["seq"] for item in first["items"]] == list(range(1, 101))
    assert (first["next_after"], first["last_event_seq"]) == (100, 150)
    second = page(served.url, story.id, home.headers, after=first["next_after"]).json()
    assert [item["seq"] for item in second["items"]] == list(range(101, 151))
    assert second["next_after"] is None
    assert page(served.url, story.id, home.headers, after=150).json()["items"] == []
    assert len(page(served.url, story.id, home.headers, limit=3).json()["items"]) == 3


@pytest.mark.parametrize("limit", ["0", "501", "many", "-1", "٣"])
def test_a_limit_out_of_range_is_refused(served, house, limit):
    home = house()
    story = Story(home.tenant)
    response = page(served.url, story.id, home.headers, limit=limit)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/limit"
