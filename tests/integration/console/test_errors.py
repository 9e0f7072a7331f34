"""Error pages are ours, say what to do, and depend on nothing that may be broken."""

import pytest
from django.test import Client, RequestFactory

from agentops.console import errors
from agentops.telemetry.requests import RequestContextMiddleware
from tests import factories, proposals


def test_a_missing_page_stands_in_the_shell_with_its_request_id(db: None) -> None:
    client = Client()
    client.force_login(factories.person(proposals.shop()))
    answer = client.get("/admin/nothing/")
    page = answer.content.decode()
    assert answer.status_code == 404
    assert answer["X-Request-ID"] in page
    assert 'id="shell-nav"' in page
    assert "no-store" in answer["Cache-Control"]


def test_outside_the_shell_it_stands_alone(db: None) -> None:
    page = Client().get("/nothing-here/").content.decode()
    assert "Not found" in page
    assert 'id="shell-nav"' not in page


@pytest.mark.parametrize("path", ["/admin/", "/anything"])
def test_the_page_of_a_fault_asks_no_database(path: str) -> None:
    """No database is set up for this test: a query would fail it."""
    answer = RequestContextMiddleware(errors.broken)(RequestFactory().get(path))
    page = answer.content.decode()
    assert answer.status_code == 500
    assert "Something broke on our side" in page
    assert answer["X-Request-ID"] in page


def test_the_front_door_leads_to_the_console(db: None) -> None:
    assert Client().get("/")["Location"] == "/admin/"


@pytest.mark.parametrize("path", ["/admin/login/", "/admin/", "/nothing-here/"])
def test_a_cookie_that_cannot_be_kept_is_nobodys(db: None, path: str) -> None:
    answer = Client().get(path, headers={"Cookie": 'sessionid="abcdefgh\\000"'})
    assert answer.status_code == Client().get(path).status_code
