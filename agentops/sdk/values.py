"""The values that cross a tool's edge: order ids, money and receipts."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

OrderId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}-[0-9]{1,12}$", description="An order's id, for example A-1001."
    ),
]


class Money(BaseModel):
    """An amount in the currency's minor unit: 12900 EUR is 129.00 euro."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount_minor: int = Field(
        gt=0, lt=2**53, strict=True, description="In minor units: cents for EUR and USD."
    )
    currency: str = Field(pattern=r"^[A-Z]{3}$", description="ISO 4217, in capitals.")


class ChildRun(BaseModel):
    """A run that a tool has started: its answer, which is empty for a detached one."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    agent: str
    text: str = ""


class Receipt(BaseModel):
    """The proof of one operation; `provider_ref` is the provider's own id for what it did."""

    model_config = ConfigDict(frozen=True)

    operation_id: str
    action: str
    target: str
    status: str
    provider_ref: str | None = None
    amount_minor: int | None = None
    currency: str | None = None
    detail: dict[str, Any] = Field(default_factory=dict)
