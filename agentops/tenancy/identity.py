"""The signed minimal identity: a short-lived EdDSA token that tells another system on whose behalf we call."""

import base64
import hashlib
import time
from functools import cache
from typing import Any
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.conf import settings

from agentops.kernel.ids import uuid7

HEADER = "Txn-Token"
LIFETIME_SECONDS = 60


@cache
def _key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(settings.AGENTOPS_SIGNING_KEY))


def _public() -> bytes:
    return _key().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def key_name() -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(_public()).digest()[:12]).decode()


def jwks() -> dict[str, Any]:
    """The public keys, as served under /.well-known/jwks.json."""
    x = base64.urlsafe_b64encode(_public()).rstrip(b"=").decode()
    return {
        "keys": [{"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": key_name(), "x": x}]
    }


def sign(
    *,
    audience: str,
    tenant: str,
    subject: str,
    agent: str,
    scope: str,
    run_id: UUID | None = None,
    operation_id: str | None = None,
    target: str | None = None,
) -> str:
    """A token for one request: whom it is for, on whose behalf, and about which operation and target."""
    issued = int(time.time())  # foreign verifiers compare it with their own wall clock
    context = {"tenant": tenant, "operation_id": operation_id, "target": target}
    claims = {
        "iss": settings.AGENTOPS_BASE_URL,
        "aud": audience,
        "iat": issued,
        "exp": issued + LIFETIME_SECONDS,
        "txn": str(run_id or uuid7()),
        "sub": subject,
        "scope": scope,
        "act": {"sub": f"agent:{agent}"},
        "tctx": {name: value for name, value in context.items() if value is not None},
        "rctx": {"request_id": str(uuid7())},
    }
    return jwt.encode(claims, _key(), algorithm="EdDSA", headers={"typ": "txntoken+jwt", "kid": key_name()})
