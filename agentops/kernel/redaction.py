"""Masks: applied before anything reaches an event, a log, a span or a page."""

import re
from collections.abc import Callable
from typing import Any

MASK = "•••"

_SECRET_NAMES = re.compile(
    r"(?i)(secret|token|password|passwd|authorization|api[_-]?key|credential|cookie|cvc|cvv)"
)
type _Replacement = str | Callable[[re.Match[str]], str]


def _last_four(found: re.Match[str]) -> str:
    return f"{MASK} {re.sub(r'\D', '', found.group())[-4:]}"


_PATTERNS: tuple[tuple[re.Pattern[str], _Replacement], ...] = (
    (re.compile(r"\b(?:sk|pk|rk|whsec|agops)_[A-Za-z0-9_\-]{8,}"), MASK),
    (re.compile(r"\bBearer\s+[A-Za-z0-9._\-~+/]{8,}=*", re.IGNORECASE), f"Bearer {MASK}"),
    # Each run of letters is read once: anybody can ask for an address of 64 KB, and it is masked on its way to the log.
    (
        re.compile(
            r"(?<![A-Za-z0-9_\-])(?>([A-Za-z0-9_\-]*?)\beyJ[A-Za-z0-9_\-]{8,})\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?<![A-Za-z0-9._%+\-])([._%+\-]*[A-Za-z0-9])[A-Za-z0-9._%+\-]*+@([A-Za-z0-9.\-]+\.[A-Za-z]{2,})"
        ),
        rf"\1{MASK}@\2",
    ),
    (re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"), MASK),
    # After the account numbers, whose digits read like a card's.
    (re.compile(r"(?<![\d.])(?:\d[ -]?){13,19}(?!\d)"), _last_four),
    (re.compile(r"(?<![\dA-Za-z.-])\+?\d[\d ()/-]{9,}\d(?![\dA-Za-z])"), MASK),
)


def mask_text(text: str) -> str:
    """`text` with e-mail addresses, card, account and phone numbers and anything like a credential masked."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def mask(value: Any) -> Any:
    """A copy of a JSON value with every text masked, and whole the values of fields named like a secret."""
    match value:
        case str():
            return mask_text(value)
        case dict():
            return {
                key: MASK if _SECRET_NAMES.search(str(key)) else mask(item) for key, item in value.items()
            }
        case list() | tuple():
            return [mask(item) for item in value]
    return value


def storable(text: str) -> str:
    """`text` as PostgreSQL can hold it: no NUL, no lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def printable(text: str, limit: int = 2_000) -> str:
    """Text from a model or a customer, made safe to store and to show: no NUL, no lone surrogates, no bidi controls."""
    text = re.sub(r"[\u202a-\u202e\u2066-\u2069\u200e\u200f]", "", storable(text))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def reason(text: str, limit: int = 2_000) -> str:
    """Why a person did something, in their words, made as safe; "" where nobody could see any of it."""
    said = printable(text, limit).strip()
    return said if any(letter.isprintable() and not letter.isspace() for letter in said) else ""
