"""Reads from the shop, in the name of whoever the operation acts for: whose an order is, is the shop's word."""

from typing import Any
from urllib.parse import quote

from django.conf import settings

from agentops.tenancy import identity
from operations.connectors.base import Call, CheckFailed
from operations.connectors.wire import Lost, NotSent, Reply, exchange

AUDIENCE = "shop"


def identity_headers(call: Call, scope: str, credential: str = "") -> dict[str, str]:
    token = identity.sign(
        audience=AUDIENCE,
        tenant=call.tenant,
        subject=call.actor,
        agent=call.agent,
        scope=scope,
        operation_id=call.operation_id,
        target=f"{call.target_type}:{call.target}",
    )
    headers = {identity.HEADER: token}
    if credential:
        headers["Authorization"] = f"Bearer {credential}"
    return headers


def order(call: Call, order_id: str) -> dict[str, Any]:
    """The order as the shop shows it to the one who asks for the operation. Raises CheckFailed."""
    return read(call, f"/orders/{quote(order_id, safe='')}", what=f"order {order_id}")


def customer(call: Call, customer_id: str) -> dict[str, Any]:
    return read(call, f"/customers/{quote(customer_id, safe='')}", what=f"customer {customer_id}")


def read(call: Call, path: str, *, what: str, base_url: str = "", credential: str = "") -> dict[str, Any]:
    """The shop's JSON object; without `base_url` that of the shop in the settings. Raises CheckFailed."""
    reply = get(call, path, base_url=base_url, credential=credential)
    match reply.status:
        case 200 if fields := reply.fields:
            return fields
        case 404:
            raise CheckFailed("not_found", f"The shop knows no {what}.", retryable=False)
        case 403:
            raise CheckFailed(
                "not_yours", f"The shop does not show {what} to this customer.", retryable=False
            )
        case 401:
            raise CheckFailed("shop_refuses_us", "The shop does not accept our identity.", retryable=True)
        case status:
            raise CheckFailed(
                "shop_unavailable", f"The shop cannot answer now (HTTP {status}).", retryable=True
            )


def get(
    call: Call,
    path: str,
    *,
    params: dict[str, str] | None = None,
    base_url: str = "",
    credential: str = "",
) -> Reply:
    """Any answer of the shop. Raises CheckFailed where there is none."""
    base_url = base_url or settings.AGENTOPS_SHOP_URL
    if not base_url:
        raise CheckFailed(
            "shop_not_configured", "The shop's address is not known: set AGENTOPS_SHOP_URL.", retryable=False
        )
    try:
        return exchange(
            "GET",
            f"{base_url.rstrip('/')}{path}",
            params=params,
            headers=identity_headers(call, "orders:read", credential),
            timeout_seconds=call.timeout_seconds,
        )
    except (NotSent, Lost) as error:
        raise CheckFailed("shop_unreachable", "The shop cannot be reached now.", retryable=True) from error
