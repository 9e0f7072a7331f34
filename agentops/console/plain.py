"""Text that nobody vouches for, made safe to look at: what would hide or reorder it becomes visible."""

import re
from collections.abc import Mapping

from django.http import QueryDict

from agentops.kernel.redaction import storable

# Bidirectional controls, and every control character but tab and newline.
_HIDDEN = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """`text` with bidi controls written out (`[U+202E]`) and other control characters replaced."""
    named = _HIDDEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text.replace("\r\n", "\n"))
    return _CONTROL.sub("\ufffd", named)


def storable_form(form: QueryDict) -> QueryDict:
    """What a browser sent, as text that the database can be asked about."""
    if all(text == storable(text) for name, values in form.lists() for text in (name, *values)):
        return form
    clean = QueryDict(mutable=True)
    for name, values in form.lists():
        clean.setlist(storable(name), [storable(value) for value in values])
    return clean


def number(text: str | None, default: int = 0, *, most: int = 2**31) -> int:
    """A whole number above zero; whatever else somebody typed into an address is `default`."""
    return int(text) if text and len(text) < 11 and text.isdecimal() and 0 < int(text) < most else default


def arguments_line(arguments: object) -> str:
    """`order_id=A-1002, reason=damaged`: a call's arguments in one line, in their own order."""
    if not isinstance(arguments, Mapping):
        return ""
    return ", ".join(f"{name}={_value(value)}" for name, value in arguments.items())


def _value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str() | int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case list():
            return f"[{', '.join(_value(item) for item in value)}]"
        case Mapping():
            return f"{{{', '.join(f'{name}={_value(item)}' for name, item in value.items())}}}"
    return ""
