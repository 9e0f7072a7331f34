"""Orders cancelled and notes added at the shop: an HTTP connector, whole."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic import Field as Limit

from agentops.kernel.canonical import serialise
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
    Request,
    Trial,
)
from operations.connectors.wire import Lost, NotSent, Reply, exchange
from operations.states import Verdict

from . import reading

REFUSALS = frozenset(  # nothing was done, and never will be under this request
    {"already_cancelled", "idempotency_key_too_long", "invalid_json", "invalid_parameter", "no_such_order",
     "not_your_order", "order_locked"}
)  # fmt: skip
NOT_NOW = frozenset({"identity_keys_unavailable", "rate_limited"})  # "nothing was done", says the shop


class CancelParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
    reason: Literal["not_wanted", "ordered_by_mistake", "too_late", "other"] = "other"


class NoteParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: Annotated[str, Limit(min_length=1, max_length=4_000)]


class ShopConnector(Connector):
    name = "shop"
    version = 1
    abilities = Abilities(
        honours_idempotency_keys=True,
        key_lifetime_seconds=24 * 3600,
        replays_errors=True,
        refuses_changed_body=True,
        can_look_up=True,
        look_up_lag_seconds=settings.AGENTOPS_LOOKUP_LAG_SECONDS,
        can_list=False,
    )
    actions = (
        Action("order.cancel", 1, "shop", "order", CancelParams, intent=("order",)),
        # Two notes in the same words are two notes: the request for it is what makes one itself.
        Action("note.add", 1, "shop", "notes", NoteParams, intent=(), guards_target=False),
    )

    def trial(self, ground: Call) -> Trial:
        """The order that was named is cancelled; else a note is written, into a shop of its own that nobody reads."""
        cancel, note = self.actions
        if ground.target:
            first = ground.asking(cancel, ground.target, {"order": ground.target, "reason": "other"})
            changed = replace(first, params={**first.params, "reason": "too_late"})
            key, owner = f"{first.idempotency_key}_2", f"{first.operation_id}_2"
            return Trial(first, changed, refused=replace(first, operation_id=owner, idempotency_key=key))
        ground = replace(ground, tenant=f"{ground.tenant}-trial")
        first = ground.asking(note, ground.tenant, {"text": "A contract test wrote this."})
        return Trial(first, replace(first, params={"text": "A contract test changed this."}))

    def check(self, call: Call) -> Facts:
        if call.action == "note.add":
            if call.target != call.tenant:
                raise CheckFailed("not_yours", "These notes are another tenant's.", retryable=False)
            return Facts(fields=[Field("note", None, call.params["text"])])
        if call.params["order"] != call.target:
            raise CheckFailed("other_order", "The parameters speak of another order.", retryable=False)
        order = reading.order(call, call.target, base_url=call.base_url, credential=call.credential)
        is_cancelled = order.status == "cancelled"
        return Facts(
            facts=[
                Fact("order_status", order.status, "shop"),
                Fact("is_cancelled", is_cancelled, "shop", Guard("==", False)),
            ],
            fields=[Field("order_status", order.status, "cancelled", "code")],
        )

    def build(self, call: Call) -> Request:
        if call.action == "note.add":
            return Request("POST", "/notes", serialise({"text": call.params["text"]}))
        return Request(
            "POST", f"{reading.order_path(call.target)}/cancel", serialise({"reason": call.params["reason"]})
        )

    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        headers = {
            **reading.identity_headers(call, call.action, call.credential),
            "Content-Type": "application/json",
            "Idempotency-Key": call.idempotency_key,
            "X-Operation-Id": call.operation_id,
        }
        try:
            reply = exchange(
                request.method,
                call.base_url.rstrip("/") + request.path,
                headers=headers,
                body=request.body,
                timeout_seconds=call.timeout_seconds,
                before_first_byte=before_first_byte,
            )
        except NotSent as error:
            return Answer(Verdict.NOT_SENT, code="unreachable", detail=str(error))
        except Lost as error:
            return Answer(Verdict.UNKNOWN, code="no_answer", detail=str(error))
        return _answer_of(call, reply)

    def look_up(self, call: Call) -> Answer:
        is_note = call.action == "note.add"
        path = "/notes" if is_note else f"{reading.order_path(call.target)}/cancellation"
        params = {"operation_id": call.operation_id} if is_note else None
        try:
            reply = reading.get(call, path, params=params, base_url=call.base_url, credential=call.credential)
        except CheckFailed as failed:
            return Answer(Verdict.UNREACHABLE, code=failed.code, detail=failed.detail)
        match reply.status:
            case 200 if is_note:
                return _noted(call, reply.fields.get("notes"))
            case 200:
                return _evidence(call, reply.fields)
            case 404 if _error(reply).get("code") == "not_cancelled":
                return Answer(Verdict.ABSENT, detail="The order is not cancelled.")
            case 401 | 403:
                return Answer(Verdict.BLOCKED, code=str(_error(reply).get("code")))
            case status if status == 429 or status >= 500:
                return Answer(Verdict.UNREACHABLE, code=f"http_{status}")
            case status:
                return Answer(Verdict.UNKNOWN, code=f"http_{status}")


def _answer_of(call: Call, reply: Reply) -> Answer:
    if 200 <= reply.status < 300:
        return _evidence(call, reply.fields, under_our_key=reply.is_replayed)
    error = _error(reply)
    code = str(error.get("code") or f"http_{reply.status}")
    earlier = error.get("cancellation")
    if (
        code == "already_cancelled"
        and isinstance(earlier, dict)
        and earlier.get("operation_id") == call.operation_id
    ):
        return _evidence(call, earlier)  # it was ourselves, under a key that the shop has forgotten
    return Answer(
        _verdict(reply, code),
        code=code,
        detail=str(error.get("message") or f"The shop answered HTTP {reply.status}."),
        retry_after_seconds=reply.retry_after_seconds,
    )


def _verdict(reply: Reply, code: str) -> Verdict:
    if reply.is_replayed:
        return Verdict.SPENT
    if code == "idempotency_mismatch":
        return Verdict.CONTRADICTION
    if code == "idempotency_key_in_use":
        return Verdict.BUSY
    if code in NOT_NOW:
        return Verdict.NOT_SENT
    if 400 <= reply.status < 500 and code in REFUSALS:
        return Verdict.REFUSED
    return Verdict.BLOCKED if reply.status in (401, 403) else Verdict.UNKNOWN


def _evidence(call: Call, effect: dict[str, Any], *, under_our_key: bool = False) -> Answer:
    """What a cancellation or a note says about the operation."""
    reference = effect.get("id")
    if not (isinstance(reference, str) and reference):
        return Answer(Verdict.CONTRADICTION, code="no_receipt", detail="The answer names no effect.")
    if call.action == "order.cancel" and effect.get("order") != call.target:
        return Answer(Verdict.CONTRADICTION, provider_ref=reference, code="other_order")
    if effect.get("operation_id") != call.operation_id and not under_our_key:
        if call.action == "order.cancel":  # there is one cancellation of an order, and it is somebody else's
            return Answer(
                Verdict.REFUSED, code="already_cancelled", detail="Somebody else cancelled the order."
            )
        return Answer(Verdict.CONTRADICTION, provider_ref=reference, code="other_operation")
    return Answer(Verdict.APPLIED, provider_ref=reference, receipt=effect)


def _noted(call: Call, notes: Any) -> Answer:
    if not isinstance(notes, list):
        return Answer(Verdict.UNKNOWN, code="unreadable")
    if len(notes) > 1:
        return Answer(Verdict.CONTRADICTION, code="two_effects", detail="Several notes carry this operation.")
    return (
        _evidence(call, notes[0])
        if notes
        else Answer(Verdict.ABSENT, detail="No note carries this operation.")
    )


def _error(reply: Reply) -> dict[str, Any]:
    error = reply.fields.get("error")
    return error if isinstance(error, dict) else {}
