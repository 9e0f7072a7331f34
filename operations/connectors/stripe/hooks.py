"""Stripe's messages: the signature is the SDK's to check, what they say of refunds is ours to read.

Importing this module loads the SDK: import it where it is used.
"""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import stripe
from pydantic import BaseModel, Field, ValidationError

from operations.connectors.base import Message, NotSigned
from operations.connectors.wire import MAX_NESTING, is_deeper

from .refunds import told_of

Name = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,120}$")]


class _Data(BaseModel):
    object: dict[str, Any]


class _Event(BaseModel):
    """Of Stripe's event, what we rely on."""

    id: Name
    type: Name
    created: int = Field(ge=0, lt=2**34)
    data: _Data


def read(signature: str, body: bytes, secret: str) -> Message:
    """Raises NotSigned."""
    try:
        stripe.WebhookSignature.verify_header(body, signature, secret)
        event = _Event.model_validate(json.loads(body))
        signed_at = datetime.fromtimestamp(_timestamp(signature), UTC)
        if is_deeper(event.data.object, MAX_NESTING):
            raise ValueError("nested too deep to be kept")
    except (stripe.StripeError, ValidationError, ValueError, TypeError, RecursionError) as error:
        raise NotSigned(f"Stripe's signature does not hold ({type(error).__name__}).") from None
    return Message(
        event_id=event.id,
        type=event.type[:60],
        told_at=datetime.fromtimestamp(event.created, UTC),
        signed_at=signed_at,
        told=told_of(event.data.object),
    )


def _timestamp(signature: str) -> int:
    """Of a header that was verified: the time that stands under the signature."""
    return int(next(part[2:] for part in signature.split(",") if part.startswith("t=")))
