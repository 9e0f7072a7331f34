"""Reads from the shop, in the name of whoever the operation acts for: whose an order is, is the shop's word."""

from urllib.parse import quote

from django.conf import settings
from pydantic import BaseModel, ValidationError

from agentops.tenancy import identity
from operations.connectors.base import Call, CheckFailed
from operations.connectors.http import error_of
from operations.connectors.wire import Lost, NotSent, Reply, exchange

AUDIENCE = "shop"


class OrderLine(BaseModel):
    id: str
    amount_minor: int


class Shipment(BaseModel):
    status: str


class Order(BaseModel):
    """Of the shop's order, what a proposal may rest on."""

    customer: str
    charge: str
    status: str
    lines: list[OrderLine]
    shipment: Shipment | None = None


class Cancellation(BaseModel):
    id: str


class Customer(BaseModel):
    name: str
    email: str


def order(call: Call, order_id: str, *, base_url: str = "", credential: str = "") -> Order:
    """The order as the shop shows it to the one who asks for the operation. Raises CheckFailed."""
    reply = get(call, order_path(order_id), base_url=base_url, credential=credential)
    return _read_as(Order, reply, f"order {order_id}")


def standing_cancellation(call: Call, order_id: str, *, base_url: str, credential: str) -> str:
    """The shop's name of the cancellation that stands; "" where the order is not cancelled. Raises CheckFailed."""
    path = f"{order_path(order_id)}/cancellation"
    reply = get(call, path, base_url=base_url, credential=credential)
    if reply.status == 404 and error_of(reply).get("code") == "not_cancelled":
        return ""
    return _read_as(Cancellation, reply, f"cancellation of order {order_id}").id


def customer(call: Call, customer_id: str) -> Customer:
    """Raises CheckFailed."""
    reply = get(call, f"/customers/{quote(customer_id, safe='')}")
    return _read_as(Customer, reply, f"customer {customer_id}")


def order_path(order_id: str) -> str:
    return f"/orders/{quote(order_id, safe='')}"


def get(
    call: Call,
    path: str,
    *,
    params: dict[str, str] | None = None,
    base_url: str = "",
    credential: str = "",
) -> Reply:
    """Any answer of the shop; without `base_url`, of the one in the settings. Raises CheckFailed where there is none."""
    base_url = base_url or settings.AGENTOPS_SHOP_URL
    if not base_url:
        detail = "The shop's address is not known: set AGENTOPS_SHOP_URL."
        raise CheckFailed("shop_not_configured", detail, retryable=False)
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


def identity_headers(call: Call, scope: str, credential: str) -> dict[str, str]:
    """Who asks, for which operation, and the shop's own key where it wants one."""
    token = identity.sign(
        audience=AUDIENCE,
        tenant=call.tenant,
        subject=call.actor,
        agent=call.agent,
        scope=scope,
        operation_id=call.operation_id,
        target=f"{call.target_type}:{call.target}",
    )
    return {identity.HEADER: token} | ({"Authorization": f"Bearer {credential}"} if credential else {})


def _read_as[M: BaseModel](model: type[M], reply: Reply, what: str) -> M:
    match reply.status:
        case 200:
            try:
                return model.model_validate(reply.fields)
            except ValidationError as error:
                detail = f"The shop's answer about {what} cannot be read."
                raise CheckFailed("shop_unreadable", detail, retryable=True) from error
        case 404:
            raise CheckFailed("not_found", f"The shop knows no {what}.", retryable=False)
        case 403:
            detail = f"The shop does not show {what} to this customer."
            raise CheckFailed("not_yours", detail, retryable=False)
        case 401:
            raise CheckFailed("shop_refuses_us", "The shop does not accept our identity.", retryable=True)
        case status:
            detail = f"The shop cannot answer now (HTTP {status})."
            raise CheckFailed("shop_unavailable", detail, retryable=True)
