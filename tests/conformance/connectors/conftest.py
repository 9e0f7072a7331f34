"""The real provider process for every connector, and servers that say what that one never would."""

from collections.abc import Iterator

import pytest

from tests.conformance.connectors.servers import MailServer, Scripted
from tests.conformance.connectors.subjects import SUBJECTS, Subject


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest.fixture(params=[each for each in SUBJECTS if each.is_http], ids=lambda subject: subject.name)
def http_subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server
