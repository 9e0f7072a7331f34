"""Who is calling: a token or a signed-in person, in one tenant, over one channel."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from agentops.kernel.clock import Now, now
from agentops.kernel.ids import show

from .models import ApiToken, Tenant, User

SCOPES = (
    "runs:read",
    "runs:write",
    "operations:read",
    "operations:write",
    "approvals:read",
    "approvals:decide",
    "usage:read",
    "evidence:read",
)
_PREFIX = "agops_"
_TOUCH_SECONDS = 60


@dataclass(frozen=True)
class Principal:
    """`name` is stable and goes into records: `token:tok_…` or `user:7`; `person` decides with own rights."""

    tenant: Tenant
    name: str
    channel: str  # rest, admin, cli, websocket
    scopes: frozenset[str]
    person: User | None = None
    token: ApiToken | None = None

    def may(self, scope: str) -> bool:
        return scope in self.scopes


def issue(
    tenant: Tenant,
    name: str,
    scopes: Iterable[str],
    *,
    person: User | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its text, which is shown once and kept nowhere."""
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise ValueError(f"unknown scopes: {', '.join(sorted(unknown))}; known are {', '.join(SCOPES)}")
    text = _PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        tenant=tenant,
        name=name,
        prefix=text[:10],
        hash=_hash(text),
        scopes=sorted(scopes),
        person=person,
        expires_at=expires_at,
    )
    return token, text


def authenticate(text: str, channel: str) -> Principal | None:
    """The principal of a bearer token; None where it is unknown, expired, revoked or its person or tenant is not active."""
    if not text.startswith(_PREFIX):
        return None
    token = (
        ApiToken.objects.select_related("tenant", "person")
        .filter(Q(expires_at=None) | Q(expires_at__gt=Now()), hash=_hash(text), revoked_at=None)
        .first()
    )
    if token is None or token.tenant.state != Tenant.State.ACTIVE:
        return None
    if token.person is not None and not token.person.is_active:
        return None
    at = now()
    if token.last_used_at is None or (at - token.last_used_at).total_seconds() > _TOUCH_SECONDS:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=at)
    return Principal(
        tenant=token.tenant,
        name=f"token:{show('tok', token.id)}",
        channel=channel,
        scopes=frozenset(token.scopes),
        person=token.person,
        token=token,
    )


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
