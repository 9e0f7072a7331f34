"""The Idempotency-Key header field (draft-ietf-httpapi-idempotency-key-header-07)."""

import re

from django.http import HttpRequest

from agentops.kernel.problems import BadRequest

HEADER = "Idempotency-Key"
_QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')  # a String of RFC 9651
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_RULE = "It is 1 to 255 characters of printable ASCII, bare or as a quoted String (RFC 9651)."

PARAMETER = {
    "in": "header",
    "name": HEADER,
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Your name for this request, new for each new one. The same key with another body answers 422; while"
    " the first request is in flight, 409.",
    "example": "3d2f7c10-9e0b-4a8e-b0c5-5a6f0f1f7d11",
}


def key_of(request: HttpRequest) -> str:
    """The key of `request`; a quoted one and a bare one of the same characters are the same key."""
    given = request.headers.get(HEADER)
    if given is None:
        raise BadRequest(
            f"The header {HEADER} is missing. Send a new unique value, such as a UUID, with each new request, and the"
            " same value when you repeat one.",
            code="idempotency_key_missing",
        )
    key = _unquoted(given.strip())
    if key is None or not _KEY.fullmatch(key):
        raise BadRequest(f"This {HEADER} cannot be used. {_RULE}", code="idempotency_key_invalid")
    return key


def _unquoted(given: str) -> str | None:
    if not given.startswith('"'):
        return given
    found = _QUOTED.fullmatch(given)
    return re.sub(r"\\(.)", r"\1", found.group(1)) if found else None
