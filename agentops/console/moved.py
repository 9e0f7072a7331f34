"""A proposal that is asked again: what has moved since the last answer, and who gave that."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from approvals import queries
from approvals.endings import ending_sentence
from approvals.grounds import difference
from approvals.models import Approval
from approvals.sentences import field_label, field_value

from .names import closed_by


@dataclass(frozen=True)
class Moved:
    """How the question before this one ended, and each thing that is not as it was then: label, then, now."""

    public_id: str
    ending: str
    at: datetime
    lines: Sequence[tuple[str, str, str]]


def moved_since(approval: Approval) -> Moved | None:
    """None where this is the first time that the operation is asked about."""
    earlier: Any = (
        Approval.objects.filter(operation_id=approval.operation_id, id__lt=approval.id)
        .select_related("data_key")
        .annotate(by=closed_by())
        .order_by("-id")
        .first()
    )
    if earlier is None:
        return None
    lines = []
    with suppress(CannotUnseal):
        vault.opened(earlier.data_key_id, earlier.data_key)
        lines = [line_of(change, approval.currency) for change in difference(earlier, approval)]
    return Moved(
        earlier.public_id, ending_sentence(earlier, by=earlier.by or ""), earlier.requested_at, lines
    )


def told_moved(approval: Approval) -> list[tuple[str, str, str]]:
    """What was otherwise when it was used, and broke nothing."""
    with suppress(CannotUnseal):
        return [line_of(change, approval.currency) for change in queries.moved(approval)]
    return []


def line_of(change: Mapping[str, Any], currency: str) -> tuple[str, str, str]:
    """A change in words: label, then, now."""
    kind = change["kind"]
    then, now = (field_value(change[side], kind, currency) for side in ("then", "now"))
    return field_label(change["name"]), then, now
