"""The real provider process for every connector, with its books and its faults."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from subjects import Provider

from agentops.tenancy import identity


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    folder = tmp_path_factory.mktemp("provider")
    keys = folder / "jwks.json"
    keys.write_text(json.dumps(identity.jwks()))
    command = [
        sys.executable,
        "-m",
        "agentops.demo.provider",
        "--port",
        "0",
        "--payments-port",
        "0",
        "--shop-port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--books", str(folder / "books.db"), "--jwks", str(keys)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:2] == ["provider", "ready:"], "the provider process did not start"
        control, payments, shop = words[3::2]
        with httpx.Client(base_url=control, trust_env=False) as door:
            yield Provider(door, payments, shop, iter(range(1_000_000)))
    finally:
        process.terminate()
        process.wait(5)


@pytest.fixture(autouse=True)
def healthy(provider: Provider, settings, tmp_path: Path) -> Iterator[None]:
    settings.AGENTOPS_SHOP_URL = provider.shop_url
    settings.AGENTOPS_MAIL_DIR = tmp_path / "mail"
    provider.fault("ok")
    yield
    provider.fault("ok")
