"""Encryption at rest: one envelope (version, key id, nonce, ciphertext), bound to the place it was written for."""

import json
import os
from typing import Any, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION = b"\x01"
_NONCE_BYTES = 12
_HEAD_BYTES = 1 + 16 + _NONCE_BYTES
KEY_BYTES = 32


class Place(NamedTuple):
    """Where a sealed value lives. An envelope copied to another row or column does not open."""

    table: str
    row: str
    column: str

    def associated(self) -> bytes:
        return "\x1f".join(self).encode()


class CannotUnseal(Exception):
    """The envelope is damaged, moved, or its key is gone (rotated out, or erased on request)."""


class Key(NamedTuple):
    id: UUID
    secret: bytes


def new_secret() -> bytes:
    return AESGCM.generate_key(bit_length=KEY_BYTES * 8)


def seal_bytes(key: Key, place: Place, plain: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(key.secret).encrypt(nonce, plain, place.associated())
    return _VERSION + key.id.bytes + nonce + sealed


def key_id(envelope: bytes | memoryview) -> UUID:
    """Which key opens `envelope`."""
    head = bytes(envelope[:_HEAD_BYTES])
    if len(head) < _HEAD_BYTES or head[:1] != _VERSION:
        raise CannotUnseal("not an envelope of ours")
    return UUID(bytes=head[1:17])


def unseal_bytes(key: Key, place: Place, envelope: bytes | memoryview) -> bytes:
    envelope = bytes(envelope)
    if key_id(envelope) != key.id:
        raise CannotUnseal("sealed with another key")
    nonce = envelope[17:_HEAD_BYTES]
    try:
        return AESGCM(key.secret).decrypt(nonce, envelope[_HEAD_BYTES:], place.associated())
    except InvalidTag:
        raise CannotUnseal(
            f"{place.table}.{place.column} of {place.row} does not open: altered or moved"
        ) from None


def seal_json(key: Key, place: Place, value: Any) -> bytes:
    return seal_bytes(key, place, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def unseal_json(key: Key, place: Place, envelope: bytes | memoryview) -> Any:
    return json.loads(unseal_bytes(key, place, envelope))
