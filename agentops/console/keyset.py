"""Long lists in order of time: pages go on from a place in the order, never from a count of skipped rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Model, QuerySet

PAGE = 50


@dataclass(frozen=True)
class Slice[Row: Model]:
    """One page, newest first. The addresses are "" where there is nothing in that direction."""

    rows: Sequence[Row]
    newer: str
    older: str


def newest_first[Row: Model](rows: QuerySet[Row], query: Mapping[str, str], size: int = PAGE) -> Slice[Row]:
    """The page that `before` or `after` (an id, UUIDv7: in the order of time) of the query asks for."""
    before, after = _id(query.get("before")), _id(query.get("after"))
    if after is not None:
        found = list(rows.filter(id__gt=after).order_by("id")[: size + 1])
        page = found[:size][::-1]
        has_newer, has_older = len(found) > size, True
    else:
        chosen = rows.filter(id__lt=before) if before is not None else rows
        found = list(chosen.order_by("-id")[: size + 1])
        page = found[:size]
        has_newer, has_older = before is not None, len(found) > size
    if not page:
        return Slice([], _address(query) if before or after else "", "")
    newer = _address(query, after=page[0].pk) if has_newer else ""
    older = _address(query, before=page[-1].pk) if has_older else ""
    return Slice(page, newer, older)


def _id(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def _address(query: Mapping[str, str], **place: Any) -> str:
    kept = {name: value for name, value in query.items() if value and name not in ("before", "after")}
    return "?" + urlencode(kept | {name: str(value) for name, value in place.items()})
