"""What the suite needs to know of each action: how to call it, how to count its effects in the books."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from agentops.kernel.ids import show, uuid7
from operations.connectors.base import Answer, Call, Connector
from operations.connectors.registry import ACTIONS, CONNECTORS
from tests.provider import STRIPE_KEY, Provider

AMOUNT_MINOR = 1_000


@dataclass(frozen=True)
class Subject:
    """One action under test."""

    name: str
    call: Callable[..., Call]
    effects: Callable[[Provider, Call], list[Any]]
    other_body: dict[str, Any] = field(
        default_factory=dict
    )  # parameters under which the request reads otherwise
    is_http: bool = True
    is_money: bool = False

    @property
    def connector(self) -> Connector:
        return CONNECTORS[ACTIONS[self.name].connector]

    @property
    def door(self) -> str:
        return "payments" if self.is_money else "shop"

    def send(self, call: Call, before_first_byte: Callable[[], None] = lambda: None) -> Answer:
        return self.connector.send(call, self.connector.build(call), before_first_byte)


def _call(provider: Provider, action: str, target: str, params: dict[str, Any], **fields: Any) -> Call:
    ordinary = dict(
        operation_id=show("op", uuid7()), tenant="acme", actor="token:tok_1", agent="support-agent", action=action,
        action_version=1, target_type=ACTIONS[action].target_type, target=target, params=params, amount_minor=None,
        currency="", idempotency_key=f"ao_{next(provider.numbers)}_{uuid7().hex}", generation=0, provider_ref="",
        base_url=provider.shop_url, credential="", timeout_seconds=2.0,
    )  # fmt: skip
    return Call(**{**ordinary, **fields})


def refund(provider: Provider, order: dict[str, Any] | None = None, **fields: Any) -> Call:
    order = order or provider.order()
    params = {
        "charge": order["charge"], "order": order["id"], "line": f"{order['id']}-1", "amount_minor": AMOUNT_MINOR,
        "currency": "EUR", "reason": "damaged", "note": "My lamp arrived in pieces.",
    }  # fmt: skip
    money = {"amount_minor": AMOUNT_MINOR, "currency": "EUR", "credential": STRIPE_KEY}
    where = {"base_url": provider.payments_url}
    return _call(provider, "refund.create", order["id"], params, **{**money, **where, **fields})


def cancellation(provider: Provider, order: dict[str, Any] | None = None, **fields: Any) -> Call:
    order = order or provider.order()
    return _call(
        provider, "order.cancel", order["id"], {"order": order["id"], "reason": "not_wanted"}, **fields
    )


def reopening(provider: Provider, order: dict[str, Any] | None = None, **fields: Any) -> Call:
    """Of an order that an operation of ours has cancelled, as the connector says that this is undone."""
    order = order or provider.order()
    shop, cancel = CONNECTORS["shop"], cancellation(provider, order)
    answer = shop.send(cancel, shop.build(cancel), lambda: None)
    params = shop.reversal(replace(cancel, provider_ref=answer.provider_ref))
    return _call(provider, "order.reopen", order["id"], dict(params), **fields)


def note(provider: Provider, **fields: Any) -> Call:
    return _call(provider, "note.add", "acme", {"text": "Call back on Monday."}, **fields)


def mail(provider: Provider, order: dict[str, Any] | None = None, **fields: Any) -> Call:
    order = order or provider.order()
    params = {
        "template": "refund-receipt", "to_customer": order["customer"], "order": order["id"],
        "amount_minor": AMOUNT_MINOR, "currency": "EUR", "refund_ref": "re_1",
    }  # fmt: skip
    call = _call(provider, "mail.send", order["customer"], params, **{"base_url": "file:", **fields})
    return replace(call, params=CONNECTORS["mail"].enrich(call))


def _of(kind: str) -> Callable[[Provider, Call], list[Any]]:
    def effects(provider: Provider, call: Call) -> list[Any]:
        return [each for each in provider.books()[kind] if each["operation_id"] == call.operation_id]

    return effects


def _messages(provider: Provider, call: Call) -> list[Any]:
    return [path for path in settings.AGENTOPS_MAIL_DIR.glob("*") if call.idempotency_key in path.name]


SUBJECTS = [
    Subject("refund.create", refund, _of("refunds"), {"amount_minor": AMOUNT_MINOR + 1}, is_money=True),
    Subject("order.cancel", cancellation, _of("cancellations"), {"reason": "too_late"}),
    Subject("note.add", note, _of("notes"), {"text": "Call back on Tuesday."}),
    Subject("mail.send", mail, _messages, {"refund_ref": "re_2"}, is_http=False),
    Subject("order.reopen", reopening, _of("reopenings"), {"cancellation": "can_other"}),
]
