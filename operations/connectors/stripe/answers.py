"""What one answer of Stripe to a write means, class by class."""

from typing import Any

from operations.connectors.base import Answer, Call
from operations.connectors.wire import Reply
from operations.states import Verdict

from .refunds import evidence

# 4xx without effect, for good. Stripe executes nothing that fails validation, and documents these of an execution.
REFUSALS = frozenset(
    {
        "amount_too_large", "amount_too_small", "charge_already_refunded", "charge_disputed",
        "charge_expired_for_capture", "charge_invalid_parameter", "charge_not_refundable", "currency_not_supported",
        "insufficient_funds", "balance_insufficient", "invalid_charge_amount", "not_allowed_on_standard_account",
        "parameter_invalid_empty", "parameter_invalid_integer", "parameter_invalid_string_blank",
        "parameter_invalid_string_empty", "parameter_missing", "parameter_unknown", "parameters_exclusive",
        "payment_intent_unexpected_state", "payment_method_not_available", "refund_disputed_payment", "resource_missing",
    }
)  # fmt: skip
BLOCKS = frozenset(
    {
        "account_closed", "account_invalid", "api_key_expired", "livemode_mismatch", "platform_account_required",
        "platform_api_key_expired", "secret_key_required", "testmode_charges_only",
    }
)  # fmt: skip
NOT_NOW = frozenset({"lock_timeout", "rate_limit"})  # refused before anything is executed


def answer_of(call: Call, reply: Reply) -> Answer:
    """The verdict of an answer to `refund.create`."""
    if 200 <= reply.status < 300:
        return evidence(call, reply.fields)
    error = reply.fields.get("error")
    error = error if isinstance(error, dict) else {}
    verdict = _verdict(reply, error)
    return Answer(
        verdict,
        code=str(error.get("code") or error.get("type") or f"http_{reply.status}"),
        detail=str(error.get("message") or f"Stripe answered HTTP {reply.status}."),
        retry_after_seconds=reply.retry_after_seconds if verdict == Verdict.NOT_SENT else None,
    )


def _verdict(reply: Reply, error: dict[str, Any]) -> Verdict:
    code, kind = error.get("code"), error.get("type")
    if reply.is_replayed:
        return Verdict.SPENT
    match reply.status:
        case 401 | 403:
            return Verdict.BLOCKED
        case 409:
            return Verdict.BUSY
        case 429:
            return Verdict.NOT_SENT
        case 400 | 402 | 404 if kind == "idempotency_error":
            return Verdict.CONTRADICTION
        case 400 | 402 | 404 if code in NOT_NOW:
            return Verdict.NOT_SENT
        case 400 | 402 | 404 if code in BLOCKS:
            return Verdict.BLOCKED
        case 400 | 402 | 404 if code in REFUSALS or kind == "card_error":
            return Verdict.REFUSED
        case 400 if kind == "invalid_request_error" and code is None and error.get("param"):
            return Verdict.REFUSED  # validation and over-refund name the parameter and carry no code
        case _:
            return Verdict.UNKNOWN
