"""The console in a real browser: a served copy on the test database, and pages on which any complaint fails a test."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.test import TransactionTestCase
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from agentops.local.browser import find
from agentops.tenancy.models import Tenant, User
from tests import factories
from tests.integration.streaming.conftest import Served, serve
from tests.proposals import shop

PASSWORD = "correct-horse-battery"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)
_houses = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marked, so that a run of this folder alone makes a test database too."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.django_db)


@pytest.fixture(autouse=True)
def _django_db_marker() -> None:
    """No transaction around a test, whatever the mark says: the served copy sees only what is committed."""


@pytest.fixture(scope="package")
def rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Rows that the served copy sees, of tenants that each test makes; all go at the end."""
    with django_db_blocker.unblock():
        yield
        TransactionTestCase()._fixture_teardown()


@pytest.fixture(scope="package")
def console(rows: None) -> Iterator[Served]:
    with serve(AGENTOPS_STREAM_RECHECK_SECONDS="1") as served:
        yield served


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Closed after this folder: while it is open its event loop runs in this thread, and Django would refuse queries."""
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=find(), args=FLAGS.split())
        yield browser
        browser.close()


@dataclass
class House:
    """A tenant of this test alone, with people who can sign in."""

    tenant: Tenant
    reviewer: User
    lead: User
    engineer: User


@pytest.fixture
def house(rows: None) -> House:
    number = next(_houses)
    tenant = shop(f"house-{number}")
    role = factories.Membership.Role
    return House(
        tenant,
        factories.person(tenant, role.REVIEWER, name=f"rosa-{number}", each_minor=20_000, password=PASSWORD),
        factories.person(tenant, role.LEAD, name=f"lena-{number}", each_minor=200_000, password=PASSWORD),
        factories.person(tenant, role.ENGINEER, name=f"emil-{number}", each_minor=None, password=PASSWORD),
    )


@dataclass
class Visit:
    """A signed-in browser window. `answers`: statuses that a page of the test means to give."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


def _heard(message: ConsoleMessage) -> str:
    """A complaint of the browser; that a page answered 4xx is no complaint, since tests ask for such pages."""
    if message.type not in ("error", "warning"):
        return ""
    if "the server responded with a status of 4" in message.text:
        return ""
    return f"{message.type}: {message.text} at {message.location['url']}"


type Open = Callable[..., Visit]


@pytest.fixture
def visit(console: Served, chromium: Browser) -> Iterator[Open]:
    """`visit(user, width=390, theme="dark")`: a window of that person; whatever the browser complains of fails the test."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def enter(
        user: User | None = None, *, width: int = 1440, theme: str = "light", **options: object
    ) -> Visit:
        height = 900 if width > 600 else 844
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, has_touch=width < 600, **options
        )
        contexts.append(context)
        seen = Visit(context.new_page(), console.url)
        visits.append(seen)
        seen.page.on("console", lambda message: seen.complaints.append(_heard(message)))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        if user is not None:
            sign_in(seen, user)
        return seen

    yield enter
    for context in contexts:
        context.close()
    assert [complaint for seen in visits for complaint in seen.complaints if complaint] == []


def sign_in(seen: Visit, user: User) -> None:
    page = seen.open("/admin/login/?next=/admin/")
    page.fill("#id_username", user.username)
    page.fill("#id_password", PASSWORD)
    page.press("#id_password", "Enter")
    page.wait_for_url("**/admin/")
