"""On whose behalf a call to the shop is made: the signed identity token, checked against the published keys."""

import json
import threading
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import jwt

from agentops.demo.provider.server import direct

AUDIENCE = "shop"
TOKEN_TYPE = "txntoken+jwt"
REQUIRED_CLAIMS = ["iss", "iat", "exp", "aud", "txn", "sub", "scope", "tctx"]
LEEWAY_SECONDS = 5
TIMEOUT_SECONDS = 3.0


class NotIdentified(Exception):
    """The token is missing or not good; says why."""


class KeysUnavailable(Exception):
    """The published keys could not be read, so nothing can be said about the token."""


@dataclass(frozen=True)
class Caller:
    tenant: str
    subject: str
    operation_id: str | None
    target: str | None  # "order:A-1001"

    @property
    def customer(self) -> str | None:
        """The customer who asks, None when it is the tenant itself or a person of it."""
        kind, _, customer = self.subject.partition(":")
        return customer if kind == "customer" else None


class Keys:
    """Public keys from a file or an address; kept, and read again only for a key that is not among them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}

    def find(self, key_id: str) -> jwt.PyJWK:
        with self._lock:
            if key_id not in self._keys:
                self._keys.update(self._read())
            if key_id not in self._keys:
                raise NotIdentified(f"the token is signed with a key that is not published: {key_id}")
            return self._keys[key_id]

    def _read(self) -> dict[str, jwt.PyJWK]:
        try:
            if self._source.startswith(("http://", "https://")):
                with direct.open(urllib.request.Request(self._source), timeout=TIMEOUT_SECONDS) as answer:
                    content = answer.read()
            else:
                content = Path(self._source).read_bytes()
            published = json.loads(content)["keys"]
            return {key["kid"]: jwt.PyJWK(key, "EdDSA") for key in published if key.get("kty") == "OKP"}
        except (OSError, HTTPException, ValueError, KeyError, TypeError, jwt.PyJWTError) as fault:
            raise KeysUnavailable(f"{self._source}: {fault}") from fault


def identify(token: str | None, keys: Keys) -> Caller:
    if not token:
        raise NotIdentified("send the signed identity token in the header Txn-Token")
    try:
        head = jwt.get_unverified_header(token)
        if str(head.get("typ", "")).lower() != TOKEN_TYPE:
            raise NotIdentified(f"the token's typ is not {TOKEN_TYPE}")
        claims: dict[str, Any] = jwt.decode(
            token,
            keys.find(str(head.get("kid", ""))),
            algorithms=["EdDSA"],
            audience=AUDIENCE,
            leeway=LEEWAY_SECONDS,
            options={"require": REQUIRED_CLAIMS},
        )
    except jwt.PyJWTError as fault:
        raise NotIdentified(f"the token is not good: {fault}") from fault
    context = claims["tctx"]
    if not isinstance(context, dict) or not isinstance(context.get("tenant"), str):
        raise NotIdentified("the token's tctx names no tenant")
    operation_id, target = (
        str(context[name]) if context.get(name) else None for name in ("operation_id", "target")
    )
    return Caller(context["tenant"], claims["sub"], operation_id, target)
