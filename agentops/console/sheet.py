"""The sheet of a proposal: what a reviewer reads before deciding, every code and value turned into words."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from approvals import queries, sentences
from approvals.models import Approval
from runs.models import AgentRun
from runs.queries import input_text

from .diff import Piece, word_diff
from .moved import Moved

LANGUAGE = "en"  # of these pages
DIFF_CHARS = 60  # a longer text is shown word by word
FREE_TEXT = {"note": "What the agent noted", "text": "What would be written", "body": "What would be written"}


@dataclass(frozen=True)
class Line:
    """One field: as it is now and as it will be. Money stands right-aligned."""

    label: str
    before: str
    after: str
    is_money: bool
    diff: Sequence[Piece] = ()  # of a long text, word by word

    @property
    def changes(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Said:
    """A sentence, its code or source in small, and when and where more of it is found."""

    sentence: str
    code: str = ""
    at: datetime | None = None
    operation_id: str = ""


@dataclass(frozen=True)
class Sheet:
    title: str
    approve_label: str
    risk_label: str
    lines: Sequence[Line]
    parameters: Sequence[tuple[str, str]]
    reasons: Sequence[Said]
    warnings: Sequence[Said]
    facts: Sequence[Said]
    words: Sequence[tuple[str, str]]  # of a customer or a model: shown as text, never as markup
    digest: str
    opens: bool = True

    @property
    def changed(self) -> list[Line]:
        return [line for line in self.lines if line.changes]

    @property
    def unchanged(self) -> list[Line]:
        return [line for line in self.lines if not line.changes]

    def kept(self, moved: Moved | None) -> dict[str, Any]:
        """What is kept of the page with the decision, as plain JSON; `moved`: since it was asked before."""
        shown = asdict(self) | {"language": LANGUAGE, "moved": moved.lines if moved else []}
        plain: dict[str, Any] = json.loads(json.dumps(shown, default=str))
        return plain


def sheet_of(approval: Approval, run: AgentRun) -> Sheet:
    """The sheet of an approval that came with its data key; where its words do not open, what its columns say."""
    try:
        return _opened(approval, input_text(run))
    except CannotUnseal:
        unreadable = Said(sentences.code_sentence("unreadable"), "unreadable")
        return Sheet(
            title=sentences.title(approval),
            approve_label="Approve",
            risk_label=sentences.risk_label(approval.risk),
            lines=[],
            parameters=[],
            reasons=[],
            warnings=[unreadable],
            facts=[],
            words=[],
            digest=approval.proposal_digest.rpartition(":")[2],
            opens=False,
        )


def _opened(approval: Approval, customer_wrote: str) -> Sheet:
    vault.opened(approval.data_key_id, approval.data_key)
    proposal, grounds = queries.proposal(approval), queries.grounds(approval)
    currency = approval.currency
    amount = "" if approval.amount_minor is None else f" {sentences.money(approval.amount_minor, currency)}"
    params: dict[str, Any] = proposal["params"]
    words = [("What the customer wrote", customer_wrote)] if customer_wrote else []
    words += [(label, str(params[name])) for name, label in FREE_TEXT.items() if params.get(name)]
    return Sheet(
        title=sentences.title(proposal),
        approve_label=f"Approve{amount}",
        risk_label=sentences.risk_label(approval.risk),
        lines=[_line(field, currency) for field in proposal["fields"]],
        parameters=[(name, _plain(value)) for name, value in params.items() if name not in FREE_TEXT],
        reasons=[Said(sentences.reason_sentence(reason), reason["code"]) for reason in proposal["reasons"]],
        warnings=[
            Said(
                sentences.warning_sentence(warning),
                warning["code"],
                operation_id=warning.get("operation_id", ""),
            )
            for warning in proposal["warnings"]
        ],
        facts=[
            Said(
                sentences.fact_sentence(fact, currency=currency),
                fact["source"],
                datetime.fromisoformat(fact["at"]),
            )
            for fact in grounds["facts"]
        ],
        words=words,
        digest=approval.proposal_digest.rpartition(":")[2],
    )


def _line(field: dict[str, Any], currency: str) -> Line:
    kind = field["kind"]
    before = sentences.field_value(field["before"], kind, currency)
    after = sentences.field_value(field["after"], kind, currency)
    is_long = bool(before) and max(len(before), len(after)) > DIFF_CHARS
    return Line(
        label=sentences.field_label(field["name"]),
        before=before,
        after=after,
        is_money=kind == "money",
        diff=word_diff(before, after) if is_long and before != after else (),
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
