"""The payment provider and shop as one process, the same for all tests of a session, and the settings that lead to it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentops.tenancy import identity

STRIPE_KEY = "sk_test_agentops_demo"


@dataclass
class Provider:
    """The provider process through its control door."""

    door: httpx.Client
    payments_url: str
    shop_url: str
    numbers: Iterator[int]

    def fault(self, mode: str, **more: Any) -> None:
        answer = self.door.post("/_faults", json={"mode": mode, **more})
        assert answer.status_code == 200, answer.text

    def order(self, tenant: str = "acme") -> dict[str, Any]:
        """An order of its own for each call, so that none sees another's effects."""
        return self.door.post("/_orders", json={"tenant": tenant, "count": 1, "amount_minor": 5_000}).json()[
            0
        ]

    def books(self) -> dict[str, Any]:
        return self.door.get("/_books").json()

    def writes(self) -> int:
        """Write requests received, whatever became of them."""
        books = self.books()
        return books["calls"] + books["shop_calls"]


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
def provider(provider_process: Provider, settings, monkeypatch, tmp_path: Path) -> Iterator[Provider]:
    """The one process without a fault, and the settings that lead to it."""
    settings.AGENTOPS_SHOP_URL = provider_process.shop_url
    settings.AGENTOPS_MAIL_DIR = tmp_path / "mail"
    monkeypatch.setitem(
        os.environ, "AGENTOPS_SHOP_URL", provider_process.shop_url
    )  # the demo's tools read it
    provider_process.fault("ok")
    yield provider_process
    provider_process.fault("ok")
