"""Orders cancelled and reopened and notes added at the shop: an HTTP connector, whole."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, get_args

from django.conf import settings
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic import Field as Limit

from agentops.kernel.canonical import serialise
from operations.connectors.base import (
    Abilities,
    Action,
    Answer,
    Call,
    CheckFailed,
    Fact,
    Facts,
    Field,
    Guard,
    Intent,
    Json,
    Page,
    Request,
    Told,
    Trial,
    Window,
)  # fmt: skip
from operations.connectors.http import HttpConnector, Where
from operations.connectors.wire import Lost, NotSent
from operations.states import Verdict

from . import reading

MAX_CURSOR_CHARS = 200
Name = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,120}$")]


class _Change(BaseModel):
    """Of a change that the shop lists, what we rely on."""

    id: Name
    operation_id: str | None = None
    order: Annotated[str, StringConstraints(pattern=r"^[^\x00]{0,120}$")] | None = None


class CancelParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
    reason: Literal["not_wanted", "ordered_by_mistake", "too_late", "other"] = "other"


class ReopenParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
    cancellation: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]


class NoteParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: Annotated[str, Limit(min_length=1, max_length=4_000)]


CANCEL = Action(
    "order.cancel",
    1,
    "shop",
    "order",
    CancelParams,
    intent=("order",),
    facts={"order_status": str, "is_cancelled": bool},
)
# What it takes back is one cancellation: the next one of the same order is another matter.
REOPEN = Action(
    "order.reopen",
    1,
    "shop",
    "order",
    ReopenParams,
    intent=("order", "cancellation"),
    reverses=CANCEL.name,
    facts={"order_status": str, "cancellation": str},
)
# Two notes in the same words are two notes: the request for it is what makes one itself.
NOTE = Action("note.add", 1, "shop", "notes", NoteParams, intent=(), guards_target=False)


class ShopConnector(HttpConnector):
    name = "shop"
    version = 2
    abilities = Abilities(
        honours_idempotency_keys=True,
        key_lifetime_seconds=24 * 3600,
        replays_errors=True,
        refuses_changed_body=True,
        can_look_up=True,
        look_up_lag_seconds=settings.AGENTOPS_LOOKUP_LAG_SECONDS,
        can_list=True,
    )
    actions = (CANCEL, REOPEN, NOTE)
    refusals = frozenset(
        {"already_cancelled", "already_reopened", "idempotency_key_too_long", "invalid_json", "invalid_parameter",
         "no_such_order", "not_cancelled", "not_your_order", "order_locked"}
    )  # fmt: skip
    not_now = frozenset({"identity_keys_unavailable", "rate_limited"})
    absent = "not_cancelled"

    def headers(self, call: Call, scope: str) -> Mapping[str, str]:
        return reading.identity_headers(call, scope, call.credential)

    def reversal(self, call: Call) -> Mapping[str, Json]:
        return {"order": call.target, "cancellation": call.provider_ref}

    def check(self, call: Call) -> Facts:
        if call.action == NOTE.name:
            if call.target != call.tenant:
                raise CheckFailed("not_yours", "These notes are another tenant's.", retryable=False)
            return Facts(fields=[Field("note", None, call.params["text"])])
        if call.params["order"] != call.target:
            raise CheckFailed("other_order", "The parameters speak of another order.", retryable=False)
        order = reading.order(call, call.target, base_url=call.base_url, credential=call.credential)
        status = Fact("order_status", order.status, "shop")
        if call.action == REOPEN.name:
            standing = reading.standing_cancellation(
                call, call.target, base_url=call.base_url, credential=call.credential
            )
            guard = Guard("==", call.params["cancellation"])  # somebody's later one is not ours to take back
            after = order.shipment.status if order.shipment else None
            return Facts(
                facts=[status, Fact("cancellation", standing, "shop", guard)],
                fields=[Field("order_status", order.status, after, "code")],
            )
        is_cancelled = Fact("is_cancelled", order.status == "cancelled", "shop", Guard("==", False))
        return Facts(
            facts=[status, is_cancelled],
            fields=[Field("order_status", order.status, "cancelled", "code")],
        )

    def build(self, call: Call) -> Request:
        if call.action == NOTE.name:
            return Request("POST", "/notes", serialise({"text": call.params["text"]}))
        if call.action == REOPEN.name:
            path = f"{reading.order_path(call.target)}/reopen"
            return Request("POST", path, serialise({"cancellation": call.params["cancellation"]}))
        path = f"{reading.order_path(call.target)}/cancel"
        return Request("POST", path, serialise({"reason": call.params["reason"]}))

    def where_to_look(self, call: Call) -> Where:
        if call.action == NOTE.name:
            return "/notes", {"operation_id": call.operation_id}
        if call.action == REOPEN.name:
            asked = {"cancellation": call.params["cancellation"]}
            return f"{reading.order_path(call.target)}/reopenings", asked
        # Named, so that our own one is found even where it has been taken back since.
        return f"{reading.order_path(call.target)}/cancellation", {"operation_id": call.operation_id}

    def evidence(self, call: Call, effect: Mapping[str, Json], *, under_our_key: bool = False) -> Answer:
        reference = effect.get("id")
        if not (isinstance(reference, str) and reference):
            return Answer(Verdict.CONTRADICTION, code="no_receipt", detail="The answer names no effect.")
        if call.action != NOTE.name and effect.get("order") != call.target:
            return Answer(Verdict.CONTRADICTION, provider_ref=reference, code="other_order")
        if call.action == REOPEN.name and effect.get("cancellation") != call.params["cancellation"]:
            return Answer(Verdict.CONTRADICTION, provider_ref=reference, code="other_cancellation")
        if effect.get("operation_id") == call.operation_id or under_our_key:
            return Answer(Verdict.APPLIED, provider_ref=reference, receipt=effect)
        if call.action == CANCEL.name:  # one cancellation of an order stands, and it is somebody else's
            return Answer(
                Verdict.REFUSED, code="already_cancelled", detail="Somebody else cancelled the order."
            )
        if call.action == REOPEN.name:  # there is one reopening of a cancellation, and it is somebody else's
            return Answer(
                Verdict.REFUSED, code="already_reopened", detail="Somebody else reopened the order."
            )
        return Answer(Verdict.CONTRADICTION, provider_ref=reference, code="other_operation")

    def found(self, call: Call, fields: Mapping[str, Json]) -> Answer:
        if call.action == CANCEL.name:
            return self.evidence(call, fields)
        match fields.get("notes" if call.action == NOTE.name else "reopenings"):
            case []:
                return Answer(Verdict.ABSENT, detail="Nothing that the shop lists is this operation.")
            case [effect]:
                return self.evidence(call, effect)
            case [*_]:
                detail = "Several things that the shop lists are this operation."
                return Answer(Verdict.CONTRADICTION, code="two_effects", detail=detail)
        return Answer(Verdict.UNKNOWN, code="unreadable")

    def done_already(self, call: Call, error: Mapping[str, Json]) -> Answer | None:
        earlier = error.get("reopening" if call.action == REOPEN.name else "cancellation")
        if isinstance(earlier, dict) and earlier.get("operation_id") == call.operation_id:
            return self.evidence(call, earlier)  # under a key that the shop has forgotten
        return None

    def list_effects(self, ground: Call, window: Window, cursor: str) -> Page:
        query = {
            "since": f"{window.since.timestamp():.3f}",
            "until": f"{window.until.timestamp():.3f}",
            "after": cursor,
        }
        try:
            reply = self.read(ground, "/changes", query)
        except (NotSent, Lost) as error:
            raise CheckFailed("shop_unreachable", str(error), retryable=True) from error
        changes, after = reply.fields.get("changes"), reply.fields.get("next") or ""
        is_list = isinstance(changes, list) and isinstance(after, str) and len(after) <= MAX_CURSOR_CHARS
        if reply.status != 200 or not is_list or (after and after == cursor):
            detail = f"The shop does not list its changes (HTTP {reply.status})."
            raise CheckFailed("cannot_list", detail, retryable=True)
        told = [each for change in changes or [] if (each := self.tell(change)) is not None]
        return Page(told, after)

    def tell(self, effect: Mapping[str, Json]) -> Told | None:
        try:
            change = _Change.model_validate(effect)
        except ValidationError:
            return None
        return Told(change.operation_id or "", change.id, effect, thing=change.order or "")

    def intent_of(self, told: Told) -> Intent | None:
        effect = told.effect
        if effect.get("kind") == "note":
            return None  # the words of a note that is not here are nobody's here
        if effect.get("kind") == "reopening":
            undone = effect.get("cancellation")
            params = {"order": told.thing, "cancellation": undone}
            return Intent(REOPEN, told.thing, params) if told.thing and isinstance(undone, str) else None
        known = CancelParams.model_fields["reason"].annotation
        reason = effect.get("reason") if effect.get("reason") in get_args(known) else "other"
        return Intent(CANCEL, told.thing, {"order": told.thing, "reason": reason}) if told.thing else None

    def hear(self, call: Call, told: Told) -> Answer:
        return self.evidence(call, told.effect)

    def trial(self, ground: Call) -> Trial:
        """The order that was named is cancelled; else a note is written, into a shop of its own that nobody reads."""
        if ground.target:
            first = ground.asking(CANCEL, ground.target, {"order": ground.target, "reason": "other"})
            changed = replace(first, params={**first.params, "reason": "too_late"})
            key, owner = f"{first.idempotency_key}_2", f"{first.operation_id}_2"
            return Trial(first, changed, refused=replace(first, operation_id=owner, idempotency_key=key))
        ground = replace(ground, tenant=f"{ground.tenant}-trial")
        first = ground.asking(NOTE, ground.tenant, {"text": "A contract test wrote this."})
        return Trial(first, replace(first, params={"text": "A contract test changed this."}))
