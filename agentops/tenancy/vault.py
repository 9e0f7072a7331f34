"""Data keys: made per subject, wrapped by the tenant's key, which a master key wraps; opened keys stay in memory."""

import base64
import hashlib
import threading
import time
from collections import OrderedDict
from typing import Any
from uuid import UUID

from django.conf import settings

from agentops.kernel import sealed
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import CannotUnseal, Key, Place

from .models import DataKey

_CACHE_SIZE = 4_096
_PRESENT_SECONDS = (
    300.0  # how long a process may go on wrapping and sealing with a key that was rotated elsewhere
)
_cache: OrderedDict[UUID, Key] = OrderedDict()
_lock = threading.Lock()


def master_keys() -> list[Key]:
    """The master keys of the settings; the first one seals, the others still open."""
    keys = []
    for part in settings.AGENTOPS_MASTER_KEYS.split(","):
        secret = base64.b64decode(part.strip())
        if len(secret) != sealed.KEY_BYTES:
            raise ValueError("AGENTOPS_MASTER_KEYS: each key is 32 bytes in base 64")
        keys.append(Key(UUID(bytes=hashlib.sha256(b"master" + secret).digest()[:16]), secret))
    return keys


def wrapped_place(row: UUID) -> Place:
    return Place("tenancy_datakey", str(row), "wrapped")


def make(tenant_id: int, subject: str) -> Key:
    """A new data key for `subject`; call it in the transaction that writes the subject's first row."""
    key = Key(uuid7(), sealed.new_secret())
    if subject == "tenant":
        wrapping, wrapped_by = master_keys()[0], None
    else:
        wrapping = for_tenant(tenant_id)
        wrapped_by = wrapping.id
    DataKey.objects.create(
        id=key.id,
        tenant_id=tenant_id,
        subject=subject,
        wrapped=sealed.seal_bytes(wrapping, wrapped_place(key.id), key.secret),
        wrapped_by=wrapped_by,
    )
    return key


_present: dict[tuple[int, str], tuple[UUID, float]] = {}


def _present_key(tenant_id: int, subject: str) -> Key:
    """The tenant's own key of that subject that is not retired."""
    found = _present.get((tenant_id, subject))
    if found is None or time.monotonic() - found[1] > _PRESENT_SECONDS:
        row = DataKey.objects.get(tenant_id=tenant_id, subject=subject, erased_at=None, retired_at=None)
        found = _present[tenant_id, subject] = (row.id, time.monotonic())
    return opened(found[0])


def for_tenant(tenant_id: int) -> Key:
    """The tenant's own key: it wraps its data keys and seals what belongs to no other subject."""
    return _present_key(tenant_id, "tenant")


def identity_secret(tenant_id: int) -> bytes:
    """What the tenant's idempotency keys are derived from. Never rotated: a lost operation must meet its old self."""
    return _present_key(tenant_id, "identity").secret


def opened(key_id: UUID, row: DataKey | None = None) -> Key:
    """The key with that id, unwrapped; raises CannotUnseal where it was erased."""
    known = _known(key_id)
    if known is not None:
        return known
    row = row or DataKey.objects.get(pk=key_id)
    parent = None
    if row.wrapped_by is not None and _known(row.wrapped_by) is None:
        parent = DataKey.objects.get(pk=row.wrapped_by).wrapped
    return opened_with(key_id, row.wrapped, row.wrapped_by, parent)


def opened_with(
    key_id: UUID,
    wrapped: bytes | memoryview | None,
    wrapped_by: UUID | None,
    parent_wrapped: bytes | memoryview | None,
) -> Key:
    """The same from columns that are at hand: a subject's wrapped key and, unless it is open already, its tenant's."""
    known = _known(key_id)
    if known is not None:
        return known
    if wrapped is None:
        raise CannotUnseal("this key was erased")
    if wrapped_by is None:
        wrapping = _master(wrapped)
    else:
        wrapping = _known(wrapped_by) or opened_with(wrapped_by, parent_wrapped, None, None)
    key = Key(key_id, sealed.unseal_bytes(wrapping, wrapped_place(key_id), wrapped))
    with _lock:
        _cache[key_id] = key
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return key


def _known(key_id: UUID) -> Key | None:
    with _lock:
        if key_id in _cache:
            _cache.move_to_end(key_id)
        return _cache.get(key_id)


def _master(wrapped: bytes | memoryview) -> Key:
    wrapper_id = sealed.key_id(wrapped)
    found = next((key for key in master_keys() if key.id == wrapper_id), None)
    if found is None:
        raise CannotUnseal("AGENTOPS_MASTER_KEYS has not got the key that this tenant's key is wrapped with")
    return found


def forget() -> None:
    """Drop every opened key from memory (after an erasure, and between tests)."""
    with _lock:
        _cache.clear()
        _present.clear()


def unseal(place: Place, envelope: bytes | memoryview) -> Any:
    """The JSON value in `envelope`, whatever key sealed it."""
    return sealed.unseal_json(opened(sealed.key_id(envelope)), place, envelope)
