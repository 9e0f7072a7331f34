"""The typed canonical form and its digest: what an approval and an operation key are bound to.

Rules, in this order (their version stands in every digest's prefix):
1. Text is NFC; a *reference* is also trimmed. 2. Money is an integer of minor units beside an ISO 4217 code: no floats.
3. Times are UTC, RFC 3339, with `Z`. 4. A null field is dropped: null and missing are one. 5. An integer beyond 2^53 - 1
becomes its decimal string. 6. What is left is written by RFC 8785 (JSON Canonicalization Scheme) and hashed with SHA-256.
"""

import hashlib
import unicodedata
from datetime import UTC, datetime
from typing import Any

import rfc8785

VERSION = "c1"
_EXACT = 2**53 - 1


class NotCanonical(ValueError):
    """A value that has no canonical form (a float, a naive time, an unknown type, text that is not Unicode)."""


def canonical(value: Any, path: str = "$") -> Any:
    """`value` as plain JSON in the canonical form; raises NotCanonical naming the place of the fault."""
    match value:
        case None | bool():
            return value
        case int():
            return value if -_EXACT <= value <= _EXACT else str(value)
        case str():
            return _text(value, path)
        case datetime():
            if value.tzinfo is None:
                raise NotCanonical(f"{path}: a time without a zone")
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case dict():
            return _object(value, path)
        case list() | tuple():
            return [canonical(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise NotCanonical(f"{path}: {type(value).__name__} has no canonical form")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotCanonical(f"{path}: text with a lone surrogate") from None
    if "\x00" in value:
        raise NotCanonical(f"{path}: text with a NUL")
    return unicodedata.normalize("NFC", value)


def _object(value: dict[Any, Any], path: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise NotCanonical(f"{path}: a key that is no text")
        name = _text(key, path)
        if name in fields:
            raise NotCanonical(f"{path}: two keys become {name!r}")
        if item is not None:
            fields[name] = canonical(item, f"{path}.{name}")
    return fields


def reference(text: str) -> str:
    """A business reference as it is compared: NFC, trimmed."""
    return _text(text, "reference").strip()


def serialise(value: Any) -> bytes:
    return rfc8785.dumps(canonical(value))


def digest(kind: str, value: Any) -> str:
    """`c1:<kind>:<sha256 hex>` of the canonical form; the kind keeps digests of different things apart."""
    return f"{VERSION}:{kind}:{hashlib.sha256(kind.encode() + b'\x00' + serialise(value)).hexdigest()}"
