"""What the suite needs to know of each connector: how to call it, how to count its effects, how it is broken."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from agentops.kernel.ids import show, uuid7
from operations.connectors.base import Call
from operations.connectors.registry import CONNECTORS

STRIPE_KEY = "sk_test_agentops_demo"


@dataclass
class Provider:
    """The provider process through its control door."""

    door: httpx.Client
    payments_url: str
    shop_url: str
    numbers: Iterator[int]

    def fault(self, mode: str, **more: Any) -> None:
        assert self.door.post("/_faults", json={"mode": mode, **more}).status_code == 200

    def order(self, tenant: str = "acme", amount_minor: int = 2_490) -> dict[str, Any]:
        """An order of its own for each test, so that none sees another's effects."""
        made = self.door.post("/_orders", json={"tenant": tenant, "count": 1, "amount_minor": amount_minor})
        return made.json()[0]

    def books(self) -> dict[str, Any]:
        return self.door.get("/_books").json()


def call_of(provider: Provider, **fields: Any) -> Call:
    number = next(provider.numbers)
    ordinary = dict(
        operation_id=show("op", uuid7()), tenant="acme", actor="token:tok_1", agent="support-agent", action_version=1,
        amount_minor=None, currency="", idempotency_key=f"ao_conformance_{number}_{uuid7().hex}", generation=0,
        provider_ref="", base_url="", credential="", timeout_seconds=2.0,
    )  # fmt: skip
    return Call(**{**ordinary, **fields})


def refund(provider: Provider, **fields: Any) -> Call:
    order = provider.order()
    params = {
        "charge": order["charge"], "order": order["id"], "line": f"{order['id']}-1", "amount_minor": 2_490,
        "currency": "EUR", "reason": "damaged", "note": "The lamp is broken.",
    }  # fmt: skip
    return call_of(
        provider, action="refund.create", target_type="order", target=order["id"], params=params, amount_minor=2_490,
        currency="EUR", base_url=provider.payments_url, credential=STRIPE_KEY, **fields,
    )  # fmt: skip


def cancellation(provider: Provider, **fields: Any) -> Call:
    order = provider.order()["id"]
    return call_of(
        provider, action="order.cancel", target_type="order", target=order,
        params={"order": order, "reason": "not_wanted"}, base_url=provider.shop_url, **fields,
    )  # fmt: skip


def note(provider: Provider, **fields: Any) -> Call:
    return call_of(
        provider, action="note.add", target_type="notes", target="acme", params={"text": "Call back on Monday."},
        base_url=provider.shop_url, **fields,
    )  # fmt: skip


def mail(provider: Provider, **fields: Any) -> Call:
    order = provider.order()
    params = {
        "template": "refund-receipt", "to_customer": order["customer"], "order": order["id"], "amount_minor": 2_490,
        "currency": "EUR", "refund_ref": "re_1",
    }  # fmt: skip
    call = call_of(
        provider, action="mail.send", target_type="customer", target=order["customer"], params=params,
        base_url="file:", **fields,
    )  # fmt: skip
    return replace(call, params=CONNECTORS["mail"].enrich(call))
