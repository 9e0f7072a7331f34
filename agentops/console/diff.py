"""How a long text would change, word by word."""

import difflib
import re
from collections.abc import Sequence

_MAX_WORDS = 3_000  # of both together; beyond it the two stand side by side

type Piece = tuple[str, str]  # "same", "del" or "ins", and the text


def word_diff(before: str, after: str) -> Sequence[Piece]:
    """The pieces of `before` and `after` in reading order; empty where they are too long to compare."""
    old, new = re.split(r"(\s+)", before), re.split(r"(\s+)", after)
    if len(old) + len(new) > _MAX_WORDS:
        return []
    pieces: list[Piece] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(old[i:j])))
            continue
        if j > i:
            pieces.append(("del", "".join(old[i:j])))
        if m > k:
            pieces.append(("ins", "".join(new[k:m])))
    return pieces
