"""The provider as a process of its own on free ports, and the clients that speak to it."""

import base64
import json
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest
import stripe
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

STRIPE_KEY = "sk_test_conformance"


def eventually(holds: Any, seconds: float = 10.0) -> Any:
    """The first true answer of `holds`; fails when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(0.01)
    raise AssertionError("it never came true")


@dataclass
class Signer:
    """Signs identity tokens and publishes its key."""

    jwks: Path
    kid: str = "key-1"
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def publish(self, *others: "Signer") -> None:
        keys = [
            {"kty": "OKP", "crv": "Ed25519", "kid": each.kid, "x": each.public} for each in (self, *others)
        ]
        self.jwks.write_text(json.dumps({"keys": keys}))

    @property
    def public(self) -> str:
        raw = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    def token(
        self,
        tenant: str = "acme",
        sub: str = "tenant:acme",
        typ: str = "txntoken+jwt",
        drop: str = "",
        **changed: Any,
    ) -> str:
        claims = {
            "iss": "http://agentops.test",
            "aud": "shop",
            "iat": int(time.time()),
            "exp": int(time.time()) + 60,
            "txn": str(uuid4()),
            "sub": sub,
            "scope": "orders:read",
            "tctx": {"tenant": tenant},
            "rctx": {"request_id": "req_1"},
        } | changed
        claims.pop(drop, None)
        return jwt.encode(claims, self.private, algorithm="EdDSA", headers={"typ": typ, "kid": self.kid})


class Provider:
    def __init__(self, folder: Path, jwks: str, *options: str) -> None:
        self.books_file = folder / "books.db"
        self._arguments = [
            "--books",
            str(self.books_file),
            "--jwks",
            jwks,
            "--stripe-key",
            STRIPE_KEY,
            *options,
        ]
        self._ports = ["0", "0", "0"]
        self.start()

    def start(self) -> None:
        named = [
            f"--{name}={port}" for name, port in zip(("port", "payments-port", "shop-port"), self._ports)
        ]
        command = [sys.executable, "-m", "agentops.demo.provider", *named, *self._arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline()
        assert self.ready.startswith("provider ready: "), self.process.stderr.read()
        words = self.ready.split()
        self.control_url, self.payments_url, self.shop_url = words[3], words[5], words[7]
        self.http = httpx.Client(base_url=self.control_url, timeout=10)
        self.shop_http = httpx.Client(base_url=self.shop_url, timeout=10)
        self._ports = [url.rpartition(":")[2] for url in (self.control_url, self.payments_url, self.shop_url)]

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Ends the process; how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(10)
        return time.monotonic() - began

    def close(self) -> str:
        if self.process.poll() is None:
            self.stop()
        self.process.stdout.close()
        self.http.close()
        self.shop_http.close()
        with self.process.stderr as errors:
            return errors.read()

    def fault(self, mode: str, **more: Any) -> dict[str, Any]:
        answer = self.http.post("/_faults", json={"mode": mode, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def books(self, **query: str) -> dict[str, Any]:
        return self.http.get("/_books", params=query).json()

    def new_order(self, amount_minor: int = 10_000, tenant: str = "acme") -> dict[str, Any]:
        wanted = {"tenant": tenant, "count": 1, "amount_minor": amount_minor}
        return self.http.post("/_orders", json=wanted).json()[0]

    def refunds_of(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return self.books(order=order["id"])["refunds"]

    def stripe(
        self, url: str | None = None, key: str = STRIPE_KEY, timeout: float = 5.0
    ) -> stripe.StripeClient:
        return stripe.StripeClient(
            key,
            base_addresses={"api": url or self.control_url},
            max_network_retries=0,
            http_client=stripe.RequestsClient(timeout=timeout),
        )

    def refund(self, order: dict[str, Any], key: str | None = None, client: Any = None, **params: Any) -> Any:
        """One refund of 1,000 minor units, through the SDK; a key of its own if none is given."""
        wanted = {"charge": order["charge"], "amount": 1_000, **params}
        return (client or self.stripe()).v1.refunds.create(
            wanted, {"idempotency_key": key or f"key-{uuid4()}"}
        )

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with sqlite3.connect(self.books_file, timeout=5) as db:
            rows = db.execute(statement, values).fetchall()
        db.close()
        return rows


class Shop:
    def __init__(self, provider: Provider, signer: Signer) -> None:
        self._client = provider.shop_http
        self._signer = signer

    def call(
        self, method: str, path: str, token: str | None = None, body: Any = None, **headers: str
    ) -> httpx.Response:
        """As the tenant acme, unless a token says otherwise."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.request(
            method, path, json=body, headers={"Txn-Token": token or self._signer.token(), **named}
        )

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        return self.call("GET", path, token)

    def post(
        self, path: str, body: Any = None, key: str = "", operation: str = "", token: str | None = None
    ) -> Any:
        headers = {"Idempotency_Key": key or f"key-{uuid4()}", "X_Operation_Id": operation}
        return self.call("POST", path, token, body or {}, **headers)


class Receiver:
    """Takes webhooks; answers with the statuses it is given, then 200."""

    def __init__(self) -> None:
        self.taken: queue.Queue[tuple[bytes, str]] = queue.Queue()
        self.answers: list[int] = []
        receiver = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.taken.put((body, self.headers["Stripe-Signature"]))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hooks/conn_1"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="session")
def signer(tmp_path_factory) -> Signer:
    signer = Signer(tmp_path_factory.mktemp("keys") / "jwks.json")
    signer.publish()
    return signer


@pytest.fixture(scope="session")
def shared_provider(tmp_path_factory, signer):
    provider = Provider(tmp_path_factory.mktemp("provider"), str(signer.jwks))
    yield provider
    assert provider.close() == ""


@pytest.fixture
def provider(shared_provider):
    """The shared process without a fault; each test brings orders of its own."""
    shared_provider.http.post("/_reset")
    return shared_provider


@pytest.fixture
def own_provider(tmp_path, signer):
    """Starts processes of the test's own, on the same books."""
    started = []

    def start(*options: str, jwks: str | None = None) -> Provider:
        started.append(Provider(tmp_path, jwks or str(signer.jwks), *options))
        return started[-1]

    yield start
    for provider in started:
        assert provider.close() == ""


@pytest.fixture
def order(provider):
    return provider.new_order()


@pytest.fixture
def shop(provider, signer):
    return Shop(provider, signer)


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="session")
def wait_for():
    return eventually


@pytest.fixture(scope="session")
def shop_of():
    return Shop


@pytest.fixture(scope="session")
def signer_of():
    return Signer
