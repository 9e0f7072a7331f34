"""What a reader was shown: kept with the answer, sealed, under a digest that is computed here and copied from no form."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentops.kernel import sealed
from agentops.kernel.sealed import Key, Place
from agentops.tenancy import vault

from .models import Decision


@dataclass(frozen=True)
class Seen:
    """A sheet as its door renders it now, and the digest that came back with the answer; None where no form carries one."""

    sheet: Mapping[str, Any]
    returned: str | None = None

    @cached_property
    def digest(self) -> str:
        return digest_of(self.sheet)

    @property
    def is_as_read(self) -> bool:
        return self.returned is None or self.returned == self.digest


def digest_of(sheet: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(sheet, sort_keys=True).encode()).hexdigest()


def keep(decision: Decision, seen: Seen, key: Key) -> None:
    decision.seen_sheet_digest = seen.digest
    decision.sealed_sheet = sealed.seal_json(key, _place(decision), seen.sheet)


def seen_sheet(decision: Decision) -> dict[str, Any] | None:
    """What the reviewer had before them; None where the door had rendered nothing, as a command at the terminal."""
    if decision.sealed_sheet is None:
        return None
    sheet: dict[str, Any] = vault.unseal(_place(decision), decision.sealed_sheet)
    return sheet


def _place(decision: Decision) -> Place:
    return Place("approvals_decision", str(decision.id), "sheet")
