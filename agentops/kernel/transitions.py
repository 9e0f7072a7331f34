"""State machines: one total table per machine, and one function that moves a row by compare-and-swap."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from django.db import models
from django.db.models import F

from .clock import Now


class IllegalTransition(Exception):
    """The table does not allow this move: a fault of the caller, never of timing."""


class LostRace(Exception):
    """The row was moved by somebody else since it was read; re-read it and decide again."""


class Stateful(models.Model):
    """A row with `status` and `version` that only `swap` moves; `save()` of an existing row is refused."""

    MOVES: ClassVar[Mapping[str, frozenset[str]]]

    status: "models.CharField[str, str]"
    version = models.IntegerField(default=0)

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise IllegalTransition(f"{type(self).__name__} {self.pk} is moved by swap(), not by save()")
        super().save(*args, **kwargs)


def swap[Row: Stateful](row: Row, to: str, **changes: Any) -> Row:
    """Move `row` from the status and version it was read with to `to`, and bring the object up to date.

    Raises IllegalTransition where the table forbids the move, LostRace where the row is no longer as read.
    `to` may be the present status: then only the version counts up and `changes` are written.
    """
    if to != row.status and to not in row.MOVES[row.status]:
        raise IllegalTransition(f"{type(row).__name__} {row.pk}: {row.status} may not become {to}")
    if "updated_at" not in changes and any(field.name == "updated_at" for field in row._meta.fields):
        changes["updated_at"] = Now()
    manager = cast(Any, type(row))._base_manager
    moved = manager.filter(pk=row.pk, status=row.status, version=row.version).update(
        status=to, version=F("version") + 1, **changes
    )
    if moved != 1:
        raise LostRace(f"{type(row).__name__} {row.pk} moved meanwhile")
    row.refresh_from_db()
    return row
