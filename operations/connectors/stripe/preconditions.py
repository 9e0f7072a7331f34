"""What a refund rests on: the shop says whose charge it is, Stripe what the charge can still give."""

from collections import Counter
from typing import Annotated

from pydantic import BaseModel, ValidationError
from pydantic import Field as Limit

from operations.connectors.base import Call, CheckFailed, Fact, Facts, Field, Guard
from operations.connectors.shop import reading

from .refunds import RefundParams, counts

Minor = Annotated[int, Limit(ge=0, lt=10**15)]


class _Card(BaseModel):
    brand: str | None = None
    last4: str | None = None


class _PaidWith(BaseModel):
    card: _Card | None = None


class _Charge(BaseModel):
    """Of Stripe's charge, what we rely on."""

    amount_captured: Minor
    amount_refunded: Minor
    currency: str
    status: str
    captured: bool
    disputed: bool
    payment_method_details: _PaidWith | None = None

    @property
    def standing(self) -> str:
        if self.disputed:
            return "disputed"
        if self.status == "succeeded":
            return "captured" if self.captured else "uncaptured"
        return self.status

    @property
    def card(self) -> str:
        card = self.payment_method_details and self.payment_method_details.card
        return " ".join(part for part in (card.brand, card.last4) if part) if card else ""


class _Refund(BaseModel):
    amount: Minor
    metadata: dict[str, str] | None = None

    @property
    def operation_id(self) -> str:
        return (self.metadata or {}).get("operation_id", "")


def facts_of(call: Call) -> Facts:
    """Raises CheckFailed, in words that the model may pass on."""
    params = RefundParams.model_validate(call.params)
    if params.order != call.target:
        raise CheckFailed("other_order", "The parameters speak of another order.", retryable=False)
    order = reading.order(call, params.order)
    line_minor = _line_minor(order, params)
    charge, refunds = _read(call, params.charge)
    theirs: Counter[str] = Counter()
    for refund in refunds:
        theirs[refund.operation_id] += refund.amount
    refunded, amount = charge.amount_refunded, params.amount_minor
    fields = [Field("refunded", refunded, refunded + amount, "money")]
    if charge.card:
        fields.append(Field("refund_to", None, charge.card))
    return Facts(
        facts=(
            Fact("order_charge", order.charge, "shop", Guard("==", params.charge)),
            Fact("order_status", order.status, "shop"),
            Fact("line_minor", line_minor, "shop", Guard(">=", amount)),
            Fact("captured_minor", charge.amount_captured, "payments"),
            Fact("refundable_minor", charge.amount_captured - refunded, "payments", Guard(">=", amount)),
            Fact("charge_currency", charge.currency.upper(), "payments", Guard("==", params.currency)),
            Fact("charge_status", charge.standing, "payments", Guard("==", "captured")),
        ),
        fields=fields,
        capacity_minor=charge.amount_captured,
        thing=params.charge,
        theirs=theirs,
    )


def _line_minor(order: reading.Order, params: RefundParams) -> int:
    for line in order.lines:
        if line.id == params.line:
            return line.amount_minor
    raise CheckFailed("no_such_line", f"Order {params.order} has no line {params.line}.", retryable=False)


def _read(call: Call, charge_id: str) -> tuple[_Charge, list[_Refund]]:
    """The charge and every refund of it that counts."""
    from . import account

    try:
        charge = _Charge.model_validate(account.read_charge(call, charge_id))
        refunds = [
            _Refund.model_validate(each) for each in account.refunds_of(call, charge_id) if counts(each)
        ]
    except account.Unreadable as error:
        raise _failed(error.status, charge_id) from error
    except ValidationError as error:
        raise _failed(None, charge_id) from error
    return charge, refunds


def _failed(status: int | None, charge_id: str) -> CheckFailed:
    match status:
        case 404:
            detail = f"The payment provider knows no charge {charge_id}."
            return CheckFailed("no_such_charge", detail, retryable=False)
        case 401 | 403:
            detail = "The payment provider refuses our credential."
            return CheckFailed("credential_refused", detail, retryable=True)
    return CheckFailed("payments_unreachable", "The payment provider cannot be read now.", retryable=True)
