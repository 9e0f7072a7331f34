"""One rule for text from outside: what PostgreSQL cannot keep as JSON is repaired in prose and refused in arguments.

NUL and lone surrogates fit into a Python string but not into `jsonb` or UTF-8. In what is only read (a model's answer,
a tool's result) each becomes U+FFFD. In what is acted on (arguments) they are refused, so that no identifier is
silently turned into another one.
"""

import math
import re
from typing import Any

REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def repaired(text: str) -> str:
    """`text` with split surrogate pairs joined and all that cannot be stored replaced."""
    if not _UNSTORABLE.search(text):
        return text
    joined = _SURROGATE_PAIR.sub(
        lambda pair: pair.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text
    )
    return _UNSTORABLE.sub(REPLACEMENT, joined)


def is_storable(text: str) -> bool:
    return not _UNSTORABLE.search(text)


def repaired_json(value: Any) -> Any:
    """The same for a whole JSON value, keys included; NaN and the infinities become null."""
    match value:
        case str():
            return repaired(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {repaired(key): repaired_json(item) for key, item in value.items()}
        case list():
            return [repaired_json(item) for item in value]
        case _:
            return value
