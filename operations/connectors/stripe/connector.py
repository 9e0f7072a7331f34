"""Refunds at Stripe: what they rest on, the pinned request, the look-up by reference or by metadata."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from django.conf import settings

from operations.connectors.base import (
    Abilities,
    Answer,
    Call,
    CheckFailed,
    Connector,
    Facts,
    Intent,
    Json,
    Message,
    Page,
    Request,
    Told,
    Trial,
    Window,
)
from operations.connectors.wire import Lost, NotSent
from operations.states import Verdict

from .answers import answer_of
from .preconditions import facts_of
from .refunds import REFUND, RefundParams, counts, evidence, intent_of, is_ours, told_of


class StripeConnector(Connector):
    name = "stripe"
    version = 1
    abilities = Abilities(
        honours_idempotency_keys=True,
        key_lifetime_seconds=24 * 3600,
        replays_errors=True,
        refuses_changed_body=True,
        can_look_up=True,
        look_up_lag_seconds=settings.AGENTOPS_LOOKUP_LAG_SECONDS,
        can_list=True,
    )
    actions = (REFUND,)

    def trial(self, ground: Call) -> Trial | None:
        from . import account

        try:
            charge = account.trial_charge(ground, 1_000)
        except account.Unreadable as error:
            raise CheckFailed(error.code or "no_trial_charge", str(error), retryable=False) from error

        def refund(of: Call, amount_minor: int) -> Call:
            params = RefundParams(
                charge=charge,
                order="trial",
                line="trial",
                amount_minor=amount_minor,
                currency="EUR",
                reason="other",
            )
            return of.asking(REFUND, "trial", params.model_dump(), (amount_minor, "EUR"))

        other = replace(ground, idempotency_key=f"{ground.idempotency_key}_refused")
        return Trial(refund(ground, 100), changed=refund(ground, 101), refused=refund(other, 1_001))

    def check(self, call: Call) -> Facts:
        return facts_of(call)

    def build(self, call: Call) -> Request:
        from . import account

        return account.draft_refund(call)

    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        from . import account

        try:
            return answer_of(call, account.send_refund(call, request, before_first_byte))
        except account.RequestChanged:
            return Answer(Verdict.NOT_SENT, code="request_changed", detail="The SDK now makes other bytes.")
        except NotSent as error:
            return Answer(Verdict.NOT_SENT, code="unreachable", detail=str(error))
        except Lost as error:
            return Answer(Verdict.UNKNOWN, code="no_answer", detail=str(error))

    def look_up(self, call: Call) -> Answer:
        from . import account

        params = RefundParams.model_validate(call.params)
        try:
            if call.provider_ref and (found := _by_reference(call)):
                return evidence(call, found)
            ours = [refund for refund in account.refunds_of(call, params.charge) if is_ours(call, refund)]
        except account.Unreadable as error:
            return _unreadable(error.status, error.code, str(error))
        living = [refund for refund in ours if counts(refund)]
        if len(living) > 1:
            return Answer(
                Verdict.CONTRADICTION,
                code="two_effects",
                detail="Several refunds carry this operation: "
                + ", ".join(refund["id"] for refund in living),
            )
        if not ours:
            return Answer(Verdict.ABSENT, detail="No refund of the charge carries this operation.")
        return evidence(call, (living or ours)[0])

    def list_effects(self, ground: Call, window: Window, cursor: str) -> Page:
        from . import account

        try:
            refunds, has_more = account.refunds_within(ground, window, cursor)
        except account.Unreadable as error:
            raise CheckFailed(error.code or "cannot_list", str(error), retryable=True) from error
        told = [each for refund in refunds if (each := told_of(refund)) is not None]
        return Page(told, refunds[-1]["id"] if has_more else "")

    def tell(self, effect: Mapping[str, Json]) -> Told | None:
        return told_of(effect)

    def intent_of(self, told: Told) -> Intent | None:
        return intent_of(told)

    def read_hook(self, headers: Mapping[str, str], body: bytes, secret: str) -> Message:
        from . import hooks

        return hooks.read(headers.get("Stripe-Signature", ""), body, secret)

    def hear(self, call: Call, told: Told) -> Answer:
        return evidence(call, dict(told.effect))


def _by_reference(call: Call) -> dict[str, Any] | None:
    """The refund of the reference we hold; None where it is not to be seen, or is another operation's."""
    from . import account

    try:
        found = account.read_refund(call, call.provider_ref)
    except account.Unreadable as error:
        if error.status == 404:
            return None
        raise
    return found if is_ours(call, found) else None


def _unreadable(status: int | None, code: str, message: str) -> Answer:
    if status in (401, 403):
        return Answer(Verdict.BLOCKED, code=code or "credential_refused", detail=message)
    if status is None or status == 429 or status >= 500:
        return Answer(Verdict.UNREACHABLE, code=code or f"http_{status}", detail=message)
    # A charge that this account does not know proves nothing: the credential may be another account's by now.
    return Answer(Verdict.UNKNOWN, code=code or f"http_{status}", detail=message)
