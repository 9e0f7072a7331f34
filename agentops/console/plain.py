"""Text that nobody vouches for, made safe to look at: what would hide or reorder it becomes visible."""

import re

# Bidirectional controls, and every control character but tab and newline.
_HIDDEN = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """`text` with bidi controls written out (`[U+202E]`) and other control characters replaced."""
    named = _HIDDEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text.replace("\r\n", "\n"))
    return _CONTROL.sub("\ufffd", named)
