"""Identifiers: UUIDv7 made by the application, shown as `run_…`, `op_…`, `apr_…`."""

import secrets
import threading
import time
from uuid import UUID

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 26

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """A time-ordered id (RFC 9562, version 7); ids of one process never go backwards, even if its clock does."""
    global _last
    millis = time.time_ns() // 1_000_000
    with _lock:
        # 12 bits of counter space follow the milliseconds: a burst or a clock set back counts up from the last id.
        stamp = max((millis << 12) | secrets.randbits(11), _last + 1)
        _last = stamp
    value = ((stamp >> 12) & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | (stamp & 0xFFF) << 64
    value |= 0b10 << 62 | secrets.randbits(62)
    return UUID(int=value)


def uuid7_after(other: UUID | None) -> UUID:
    """A new id that is greater than `other`, whatever the clock of the process that made that one said."""
    new = uuid7()
    return new if other is None or new > other else UUID(int=other.int + 1)


def show(prefix: str, value: UUID) -> str:
    """`show("run", id)` -> `run_01k…`: 26 characters of base 32, in the order of the ids themselves."""
    number = value.int
    letters = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, 32)
        letters.append(_ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(letters))}"


def parse(prefix: str, text: str) -> UUID | None:
    """The id in `text`, or None where it is not exactly what `show` writes; a caller answers 404 then."""
    head, _, tail = text.partition("_")
    if head != prefix or len(tail) != _LENGTH:
        return None
    number = 0
    for letter in tail:
        digit = _VALUES.get(letter)
        if digit is None:
            return None
        number = number * 32 + digit
    return UUID(int=number) if number < 1 << 128 else None
