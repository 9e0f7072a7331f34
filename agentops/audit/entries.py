"""Writing audit entries: always in the transaction of the thing they tell of."""

import hashlib
import os
from dataclasses import dataclass
from typing import Any

from agentops.kernel import sealed
from agentops.kernel.canonical import serialise
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import Place
from agentops.telemetry.logs import logger
from agentops.tenancy import vault

from .models import AuditEntry

log = logger(__name__)


@dataclass(frozen=True)
class Actor:
    """Who does something: `name` is `user:7`, `token:tok_…`, `agent:support-agent`, `system`."""

    name: str
    channel: str
    on_behalf_of: str = ""


SYSTEM = Actor("system", "worker")


def record(
    tenant_id: int,
    verb: str,
    object_type: str,
    object_id: str,
    actor: Actor,
    *,
    before: Any = None,
    after: Any = None,
    detail: dict[str, Any] | None = None,
    security: bool = False,
) -> AuditEntry:
    """Write one entry. `before` and `after` leave only salted digests; `detail` rests sealed."""
    entry_id = uuid7()
    salt = os.urandom(16)
    key = vault.for_tenant(tenant_id)
    entry = AuditEntry.objects.create(
        id=entry_id,
        tenant_id=tenant_id,
        actor=actor.name,
        on_behalf_of=actor.on_behalf_of,
        channel=actor.channel,
        verb=verb,
        object_type=object_type,
        object_id=object_id,
        security=security,
        before_digest=_digest(salt, before),
        after_digest=_digest(salt, after),
        sealed_detail=sealed.seal_json(
            key, Place("audit_auditentry", str(entry_id), "detail"), {"salt": salt.hex(), **(detail or {})}
        ),
    )
    if security:
        log.warning(
            "security_event", verb=verb, object_type=object_type, object_id=object_id, actor=actor.name
        )
    return entry


def _digest(salt: bytes, value: Any) -> str:
    return "" if value is None else hashlib.sha256(salt + serialise(value)).hexdigest()
