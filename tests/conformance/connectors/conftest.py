"""The real provider process for every connector, and servers that say what that one never would."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from agentops.tenancy import identity
from tests.conformance.connectors.servers import MailServer, Scripted
from tests.conformance.connectors.subjects import SUBJECTS, Provider, Subject


@pytest.fixture(scope="session")
def provider_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    folder = tmp_path_factory.mktemp("provider")
    (folder / "jwks.json").write_text(json.dumps(identity.jwks()))
    ports = ["--port=0", "--payments-port=0", "--shop-port=0"]
    files = [f"--books={folder / 'books.db'}", f"--jwks={folder / 'jwks.json'}"]
    command = [sys.executable, "-m", "agentops.demo.provider", *ports, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:2] == ["provider", "ready:"], "the provider process did not start"
        control, payments, shop = words[3::2]
        with httpx.Client(base_url=control, trust_env=False) as door:
            yield Provider(door, payments, shop, count())
        process.terminate()


@pytest.fixture
def provider(provider_process: Provider, settings, tmp_path: Path) -> Iterator[Provider]:
    """The one process, healthy, and the settings that lead to it."""
    settings.AGENTOPS_SHOP_URL = provider_process.shop_url
    settings.AGENTOPS_MAIL_DIR = tmp_path / "mail"
    provider_process.fault("ok")
    yield provider_process
    provider_process.fault("ok")


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
