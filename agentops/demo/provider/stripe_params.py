"""Parameters of the payments API: forms with `metadata[k]`, and the pages of its lists."""

import re
import sqlite3
from typing import Any, Self
from urllib.parse import parse_qsl

from agentops.demo.provider.stripe_wire import error, missing
from agentops.demo.provider.writes import Refused

MAX_METADATA_KEYS, MAX_METADATA_KEY_LENGTH, MAX_METADATA_VALUE_LENGTH = 50, 40, 500
METADATA_KEY = re.compile(r"metadata\[([^\[\]]+)\]")
CREATED = {"created[gt]": ">", "created[gte]": ">=", "created[lt]": "<", "created[lte]": "<="}
PAGE_LENGTH, MAX_PAGE_LENGTH = 10, 100


class Form:
    """The parameters of one request. What nobody has asked for when `done` is called is refused as unknown."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self._left = dict(pairs)

    @classmethod
    def of_body(cls, body: bytes) -> Self:
        try:
            return cls(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)))
        except ValueError:
            raise Refused(
                error(400, "Invalid form: send application/x-www-form-urlencoded in UTF-8.")
            ) from None

    def text(self, name: str) -> str | None:
        return self._left.pop(name, None) or None

    def integer(self, name: str, least: int = 1, most: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,15}", value):
            raise _bad_integer(f"Invalid integer: {value}", name)
        if int(value) < least:
            raise _bad_integer(f"This value must be greater than or equal to {least}.", name)
        if most is not None and int(value) > most:
            raise _bad_integer(f"This value must be less than or equal to {most}.", name)
        return int(value)

    def metadata(self) -> dict[str, str] | None:
        """None when it is not spoken of; an empty text asks for a key's removal, a bare `metadata=` for that of all."""
        names = {match[1]: name for name in self._left if (match := METADATA_KEY.fullmatch(name))}
        if not names:
            return {} if self._left.pop("metadata", None) == "" else None
        values = {key: self._left.pop(name) for key, name in names.items()}
        if len(values) > MAX_METADATA_KEYS:
            raise Refused(error(400, f"Metadata can have up to {MAX_METADATA_KEYS} keys.", param="metadata"))
        for key, value in values.items():
            if len(key) > MAX_METADATA_KEY_LENGTH or len(value) > MAX_METADATA_VALUE_LENGTH:
                message = (
                    f"Metadata keys can have up to {MAX_METADATA_KEY_LENGTH} characters and values up to "
                    f"{MAX_METADATA_VALUE_LENGTH}."
                )
                raise Refused(error(400, message, param=f"metadata[{key}]"))
        return values

    def done(self) -> None:
        if self._left:
            name = min(self._left)
            raise Refused(
                error(400, f"Received unknown parameter: {name}", code="parameter_unknown", param=name)
            )


def required[T](name: str, value: T | None) -> T:
    if value is None:
        raise Refused(error(400, f"Missing required param: {name}.", code="parameter_missing", param=name))
    return value


def page(
    db: sqlite3.Connection, table: str, query: dict[str, str], filters: tuple[str, ...], visible_until: float
) -> tuple[list[sqlite3.Row], bool]:
    """Rows, newest first, and whether there are more behind them."""
    form = Form(list(query.items()))
    where: list[str] = ["created_at <= ?"]
    values: list[Any] = [visible_until]
    for name in filters:
        if (wanted := form.text(name)) is not None:
            where.append(f"{name} = ?")
            values.append(wanted)
    for name, compared in CREATED.items():
        if (moment := form.integer(name, least=0)) is not None:
            where.append(f"CAST(created_at AS INTEGER) {compared} ?")
            values.append(moment)
    length = form.integer("limit", most=MAX_PAGE_LENGTH) or PAGE_LENGTH
    after, before = form.text("starting_after"), form.text("ending_before")
    form.done()
    for param, cursor, compared in (("starting_after", after, "<"), ("ending_before", before, ">")):
        if cursor is not None:
            place = db.execute(f"SELECT seq FROM {table} WHERE id = ?", (cursor,)).fetchone()
            if place is None:
                raise missing(table.removesuffix("s"), cursor, param)
            where.append(f"seq {compared} ?")
            values.append(place["seq"])
    rows = db.execute(
        f"SELECT * FROM {table} WHERE {' AND '.join(where)} ORDER BY seq {'DESC' if before is None else 'ASC'} LIMIT ?",
        (*values, length + 1),
    ).fetchall()
    found = rows[:length]
    return (found if before is None else found[::-1]), len(rows) > length


def _bad_integer(message: str, name: str) -> Refused:
    return Refused(error(400, message, code="parameter_invalid_integer", param=name))
