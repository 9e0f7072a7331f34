"""A proposal that is asked again: what has moved since the last answer, and who gave that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentops.tenancy import vault
from approvals import queries
from approvals.models import Approval
from approvals.sentences import ending_sentence, field_label, field_value

from .names import decided_by


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
        .annotate(by=decided_by())
        .order_by("-id")
        .first()
    )
    if earlier is None:
        return None
    vault.opened(earlier.data_key_id, earlier.data_key)
    then, now = _values(earlier), _values(approval)
    lines = [
        (field_label(name), then.get(name, ""), now.get(name, ""))
        for name in {**now, **then}
        if then.get(name) != now.get(name)
    ]
    return Moved(
        earlier.public_id, ending_sentence(earlier, by=earlier.by or ""), earlier.requested_at, lines
    )


def _values(approval: Approval) -> dict[str, str]:
    """Everything that a yes rests on, by name: the parameters, the facts, and the rule."""
    proposal, grounds = queries.proposal(approval), queries.grounds(approval)
    facts: list[Mapping[str, Any]] = grounds["facts"]
    values = {name: _shown(name, value, approval) for name, value in proposal["params"].items()}
    values |= {fact["name"]: _shown(fact["name"], fact["value"], approval) for fact in facts}
    return values | {"rule": str(grounds["policy"]["rule"])}


def _shown(name: str, value: Any, approval: Approval) -> str:
    return field_value(value, "money" if name.endswith("_minor") else "text", approval.currency)
