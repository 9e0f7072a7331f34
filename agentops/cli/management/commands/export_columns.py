"""Write docs/columns.md: which columns rest in the clear, and which are sealed, from the models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.management.base import BaseCommand
from django.db.models import BinaryField, CharField, Field, Model

APPS = ("tenancy", "audit", "runs", "operations", "approvals", "webhooks")
HEAD = """# What rests in the clear

Generated from the models by `manage.py export_columns`; a test compares them.

Every column that can hold a person's or a model's words is sealed (AES-GCM under a data key that the tenant's key wraps; bound to its table,
row and column). What is filtered, sorted or counted by is clear: ids, codes, names, amounts, times. A clear column of letters is bounded
in length, which stands behind it; one that holds a sentence of ours (`error_detail`) or a reason that a person gave (`ending_reason`,
`pause_reason`) is masked before it is written.

"""


def columns() -> str:
    lines = ["| table | sealed | clear letters | other clear columns |", "|---|---|---|---|"]
    for model in _models():
        sealed, letters, others = [], [], []
        for field in model._meta.concrete_fields:
            if isinstance(field, BinaryField) and (field.column or "").startswith(("sealed", "wrapped")):
                sealed.append(f"`{field.column}`")
            elif (length := _letters(field)) is not None:
                letters.append(f"`{field.column}` {length}")
            else:
                others.append(f"`{field.column}`")
        cells = (" ".join(sealed), ", ".join(letters), " ".join(others))
        lines.append(f"| {model._meta.db_table} | " + " | ".join(cells) + " |")
    return HEAD + "\n".join(lines) + "\n"


def _models() -> Iterator[type[Model]]:
    for label in APPS:
        yield from sorted(apps.get_app_config(label).get_models(), key=lambda model: model._meta.db_table)


def _letters(field: "Field[Any, Any]") -> int | None:
    """The most letters that a column of them holds; None where it holds none."""
    if isinstance(field, ArrayField):
        return _letters(field.base_field)
    return field.max_length if isinstance(field, CharField) else None


class Command(BaseCommand):
    help = "Write docs/columns.md from the models."

    def handle(self, *args: Any, **options: Any) -> None:
        place = Path(settings.BASE_DIR) / "docs" / "columns.md"
        place.write_text(columns())
        self.stdout.write(f"Written: {place.name}")
