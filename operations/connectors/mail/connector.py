"""Mail to customers: the words are a template's, the address is the shop's, and only the pinned bytes are delivered."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from email.policy import SMTP
from typing import Annotated, Literal

from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.template.loader import render_to_string
from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic import Field as Limit

from agentops.kernel.redaction import mask_text
from operations.connectors.base import (
    Abilities,
    Action,
    Answer,
    Call,
    CheckFailed,
    Connector,
    Fact,
    Facts,
    Field,
    Guard,
    Json,
    Request,
    Trial,
)
from operations.connectors.shop import reading
from operations.sentences import money

from . import folder, smtp

Reference = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]


class MailParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    template: Literal["refund-receipt"]
    to_customer: Reference
    order: Reference
    amount_minor: Annotated[int, Limit(gt=0, lt=10**12, strict=True)]
    currency: Annotated[str, Limit(pattern=r"^[A-Z]{3}$")]
    refund_ref: Reference


class MailConnector(Connector):
    """Whoever proposes a mail names a customer, never an address.

    `enrich` asks the shop for the address before the proposal is digested, so that what is approved, sealed and sent is
    one thing. It stands in the sealed parameters under the customer's own data key and in no event, fact or log.
    """

    name = "mail"
    version = 1
    abilities = smtp.ABILITIES  # the weaker of the two ways
    actions = (
        Action(
            name="mail.send",
            version=1,
            connector="mail",
            target_type="customer",
            params=MailParams,
            # The amount and the reference of the refund are the receipt's; the address may change, the intent does not.
            intent=("template", "to_customer", "order", "refund_ref"),
            guards_target=False,
            facts={"order_customer": str, "address_unchanged": bool},
            patience_seconds=900,  # what the mail tells of has happened, and over SMTP nobody but a person finds out
        ),
    )

    def abilities_at(self, base_url: str) -> Abilities:
        return folder.ABILITIES if folder.is_meant(base_url) else smtp.ABILITIES

    def enrich(self, call: Call) -> Mapping[str, Json]:
        name, address = _addressee(call)
        return {**call.params, "to_name": name, "to_address": address}

    def trial(self, ground: Call) -> Trial | None:
        """A message into the folder; over SMTP nothing is declared, so nobody is written to."""
        if not folder.is_meant(ground.base_url):
            return None
        params = {
            "template": "refund-receipt", "to_customer": "trial", "to_name": "Trial", "to_address": "trial@agentops.invalid",
            "order": "trial", "amount_minor": 100, "currency": "EUR", "refund_ref": "trial",
        }  # fmt: skip
        first = ground.asking(self.actions[0], "trial", params)
        return Trial(first, replace(first, params={**params, "amount_minor": 101}))

    def check(self, call: Call) -> Facts:
        params = call.params
        if params["to_customer"] != call.target:
            raise CheckFailed("other_customer", "The parameters speak of another customer.", retryable=False)
        order = reading.order(call, params["order"])
        _, address = _addressee(call)
        return Facts(
            facts=[
                Fact("order_customer", order.customer, "shop", Guard("==", params["to_customer"])),
                Fact("address_unchanged", address == params["to_address"], "shop", Guard("==", True)),
            ],
            fields=[
                Field("mail_to", None, mask_text(address)),
                Field("mail", None, params["template"], "code"),
            ],
        )

    def build(self, call: Call) -> Request:
        params = call.params
        words = {
            **params,
            "customer_name": params["to_name"],
            "money": money(params["amount_minor"], params["currency"]),
        }
        subject, _, text = render_to_string(f"mail/{params['template']}.txt", words).partition("\n\n")
        message = EmailMessage(
            subject=subject,
            body=text,
            to=[params["to_address"]],
            headers={
                "Message-ID": message_id(call),
                "Auto-Submitted": "auto-generated",
                "X-Operation-Id": call.operation_id,
            },
        )
        return Request("MAIL", call.base_url, message.message(policy=SMTP).as_bytes())

    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        deliver = folder.deliver if folder.is_meant(call.base_url) else smtp.deliver
        return deliver(call, request.body, before_first_byte)

    def look_up(self, call: Call) -> Answer:
        return folder.look_up(call) if folder.is_meant(call.base_url) else smtp.look_up(call)


def message_id(call: Call) -> str:
    """Derived from the key: a copy that a mail server passes on twice is recognised as one."""
    return f"<{call.idempotency_key}@agentops>"


def _addressee(call: Call) -> tuple[str, str]:
    """Name and address, as the shop has them now. Raises CheckFailed."""
    customer = reading.customer(call, call.params["to_customer"])
    try:
        validate_email(customer.email)
    except ValidationError:
        detail = "The shop has no e-mail address of this customer."
        raise CheckFailed("no_address", detail, retryable=False) from None
    return " ".join(customer.name.split()), customer.email
