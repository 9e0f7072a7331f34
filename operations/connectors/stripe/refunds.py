"""What a refund is to us: its parameters, its intent, and how one of Stripe's objects is read as evidence."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from operations.connectors.base import Action, Answer, Call, Intent, Told, key_digest
from operations.states import Verdict

Reference = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
Reason = Literal[
    "damaged", "late", "not_received", "wrong_item", "not_as_described", "not_wanted", "duplicate", "other"
]
RECEIPT_FIELDS = (
    "id", "object", "amount", "currency", "charge", "status", "reason", "created", "failure_reason", "metadata",
)  # fmt: skip


class RefundParams(BaseModel):
    """One refund of one order line, wholly or in part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    charge: Annotated[str, Field(pattern=r"^(ch|py)_[A-Za-z0-9_]{1,100}$")]
    order: Reference
    line: Reference
    amount_minor: Annotated[int, Field(gt=0, lt=10**12, strict=True)]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    reason: Reason
    note: Annotated[str, Field(max_length=500)] = ""  # a customer's words: shown to reviewers, sent to nobody


def _amount(params: Any) -> tuple[int, str]:
    return params.amount_minor, params.currency


# The amount belongs to the intent. Without it a second, smaller refund of a line would be answered with the receipt of
# the first, as if it had happened; with it the second is an operation of its own, for which the guard on the target
# asks a person. Two honest refunds of one line *and* one amount differ by their reference alone (a return number).
# The reason and the note are how a model words it, and two runs word one thing in two ways.
REFUND = Action(
    name="refund.create",
    version=1,
    connector="stripe",
    target_type="order",
    params=RefundParams,
    intent=("charge", "order", "line", "amount_minor", "currency"),
    amount=_amount,
    adjustable=("amount_minor",),
    facts={
        "order_charge": str,
        "order_status": str,
        "line_minor": int,
        "captured_minor": int,
        "refundable_minor": int,
        "charge_currency": str,
        "charge_status": str,
    },
)


def reason_of(params: RefundParams) -> Literal["duplicate", "requested_by_customer"]:
    """Stripe's word for it. Never `fraudulent`, which would put the card on its block list."""
    return "duplicate" if params.reason == "duplicate" else "requested_by_customer"


def is_ours(call: Call, refund: dict[str, Any]) -> bool:
    """By the operation's id, or by our key: an operation that was lost and proposed again meets its old self."""
    metadata = refund.get("metadata") or {}
    return metadata.get("operation_id") == call.operation_id or metadata.get("key_digest") == key_digest(
        call.idempotency_key
    )


def evidence(call: Call, refund: dict[str, Any]) -> Answer:
    """What a refund object says about the operation; CONTRADICTION where it is not the one that was asked for."""
    params = RefundParams.model_validate(call.params)
    reference, amount, currency = refund.get("id"), refund.get("amount"), refund.get("currency")
    if (
        refund.get("object") != "refund"
        or not (isinstance(reference, str) and reference)
        or not (isinstance(amount, int) and isinstance(currency, str))
    ):
        return Answer(Verdict.CONTRADICTION, code="no_receipt", detail="The answer is no refund.")
    verdict, code, detail = _status(call, refund)
    if not is_ours(call, refund):
        verdict, code = Verdict.CONTRADICTION, "other_operation"
    elif refund.get("charge") != params.charge:
        verdict, code = Verdict.CONTRADICTION, "other_charge"
    elif currency.upper() != params.currency:
        verdict, code = Verdict.CONTRADICTION, "other_currency"
    elif amount != params.amount_minor:
        verdict, code = Verdict.CONTRADICTION, "other_amount"
    return Answer(
        verdict,
        provider_ref=reference,
        receipt={name: refund[name] for name in RECEIPT_FIELDS if refund.get(name) is not None},
        code=code,
        detail=detail,
        amount_minor=amount,
        currency=currency.upper(),
    )


def _status(call: Call, refund: dict[str, Any]) -> tuple[Verdict, str, str]:
    match refund.get("status"):
        case "succeeded":
            return Verdict.APPLIED, "", ""
        case "pending" | "requires_action" as status:
            return Verdict.ACCEPTED, status, ""
        case "failed" | "canceled" as status:
            why = str(refund.get("failure_reason") or status)
            undone = Verdict.REVERSED if call.succeeded else Verdict.REFUSED
            return undone, why, f"The refund did not reach the customer ({why})."
        case status:
            return Verdict.UNKNOWN, "status_unknown", f"The refund's status is {status!r}."


def counts(refund: dict[str, Any]) -> bool:
    """Whether the money has left, or is on its way."""
    return refund.get("status") not in ("failed", "canceled")


class _Refund(BaseModel):
    id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,120}$")]
    amount: int
    currency: str = Field(pattern=r"^[a-zA-Z]{3}$")
    charge: str | None = None
    metadata: dict[str, str] | None = None


def told_of(thing: Any) -> Told | None:
    """A refund as Stripe lists it or tells of it; None for anything else."""
    if not isinstance(thing, dict) or thing.get("object") != "refund":
        return None
    try:
        refund = _Refund.model_validate(thing)
    except ValidationError:
        return None
    marks = refund.metadata or {}
    return Told(
        marks.get("operation_id", ""),
        refund.id,
        thing,
        refund.amount,
        refund.currency.upper(),
        key_digest=marks.get("key_digest", ""),
        thing=refund.charge or "",
    )


def intent_of(told: Told) -> Intent | None:
    """The refund that an effect of ours was meant to be; nobody's words come with it."""
    marks = told.effect.get("metadata") or {}
    try:
        params = RefundParams.model_validate(
            {
                "charge": told.thing,
                "order": marks.get("order"),
                "line": marks.get("order_line"),
                "amount_minor": told.amount_minor,
                "currency": told.currency,
                "reason": "duplicate" if told.effect.get("reason") == "duplicate" else "other",
            }
        )
    except ValidationError:
        return None
    return Intent(REFUND, params.order, params.model_dump())
