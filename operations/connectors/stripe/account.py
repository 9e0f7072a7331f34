"""One Stripe account through the official SDK, which makes the bytes and reads the answers; we carry them, once.

Importing this module loads the SDK, which takes most of a second: import it where it is used.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import stripe

from agentops.tenancy import identity
from operations.connectors.base import Call, Request, Window, key_digest
from operations.connectors.wire import Lost, NotSent, Reply, exchange

from .refunds import RefundParams, reason_of

stripe.enable_telemetry = False  # it would write a file at home and add a header to each request

PAYMENTS = "https://api.stripe.com"
TEST_KEYS = ("sk_test_", "rk_test_")
PAGE_LENGTH, MAX_REFUNDS = 100, 1_000

type Carry = Callable[[str, str, Mapping[str, str], bytes | None], Reply]


class Unreadable(Exception):
    """A look-up brought no object: `status` is None where nobody answered."""

    def __init__(self, status: int | None, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class RequestChanged(Exception):
    """The SDK makes other bytes now than those that this generation is pinned to."""


class _Drafted(Exception):
    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request


class _Wire(stripe.HTTPClient):
    name = "agentops"

    def __init__(self, carry: Carry) -> None:
        super().__init__()
        self._carry = carry

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        post_data: Any = None,
        *,
        _usage: list[str] | None = None,
    ) -> tuple[Any, int, Mapping[str, str]]:
        body = None if post_data is None else str(post_data).encode()
        reply = self._carry(method.upper(), url, headers or {}, body)
        return reply.body, reply.status, reply.headers

    def close(self) -> None:
        """Its connections belong to the process."""


def draft_refund(call: Call) -> Request:
    """The bytes that the SDK would send for this refund."""

    def carry(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        raise _Drafted(Request(method, urlsplit(url).path, body or b"", headers["Stripe-Version"]))

    try:
        _create_refund(call, carry)
    except _Drafted as drafted:
        return drafted.request
    raise RuntimeError("the SDK sent nothing")


def send_refund(call: Call, request: Request, before_first_byte: Callable[[], None]) -> Reply:
    """Send exactly the pinned bytes. Raises RequestChanged or NotSent with nothing sent, or Lost."""
    replies: list[Reply] = []

    def carry(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        if (method, urlsplit(url).path, body) != (request.method, request.path, request.body):
            raise RequestChanged
        replies.append(
            exchange(
                method,
                url,
                headers=headers,
                body=body,
                timeout_seconds=call.timeout_seconds,
                before_first_byte=before_first_byte,
            )
        )
        return replies[0]

    try:
        _create_refund(call, carry, request.api_version)
    except (NotSent, Lost, RequestChanged):
        raise
    except Exception:
        # Whatever the SDK thinks of an answer (an error, an empty body), the answer is there and we read it ourselves.
        if not replies:
            raise
    return replies[0]


def trial_charge(call: Call, amount_minor: int) -> str:
    """A fresh charge in Stripe's test mode, which the contract test may refund. Raises Unreadable."""
    if not call.credential.startswith(TEST_KEYS):
        raise Unreadable(
            None, "live_credential", "The credential is no test key of Stripe's: nothing was sent."
        )
    wanted: Any = {"amount": amount_minor, "currency": "eur", "source": "tok_visa"}
    return str(_read(lambda: _client(call, _reader(call)).v1.charges.create(wanted).id))


def read_charge(call: Call, charge: str) -> dict[str, Any]:
    """The charge as Stripe shows it. Raises Unreadable."""
    return _read(lambda: _client(call, _reader(call)).v1.charges.retrieve(charge).to_dict())


def read_refund(call: Call, refund: str) -> dict[str, Any]:
    return _read(lambda: _client(call, _reader(call)).v1.refunds.retrieve(refund).to_dict())


def refunds_of(call: Call, charge: str) -> list[dict[str, Any]]:
    """Every refund of the charge once, newest first. Raises Unreadable, also where there are too many to read."""
    found: dict[str, dict[str, Any]] = {}
    after, has_more, count = "", True, 0
    while has_more:
        refunds, has_more = _page(call, {"charge": charge}, after)
        found |= {refund["id"]: refund for refund in refunds}
        count += len(refunds)
        if count > MAX_REFUNDS:
            raise Unreadable(200, "too_many_refunds", f"The charge has more than {MAX_REFUNDS} refunds.")
        after = refunds[-1]["id"] if has_more else ""
    return list(found.values())


def refunds_within(call: Call, window: Window, after: str) -> tuple[list[dict[str, Any]], bool]:
    """One page of the account's refunds made in a window, newest first, and whether there are more. Raises Unreadable."""
    created = {"gte": int(window.since.timestamp()), "lte": int(window.until.timestamp())}
    return _page(call, {"created": created}, after)


def _page(call: Call, of: dict[str, Any], after: str) -> tuple[list[dict[str, Any]], bool]:
    wanted: Any = {**of, "limit": PAGE_LENGTH} | ({"starting_after": after} if after else {})

    def page() -> tuple[list[dict[str, Any]], bool]:
        found = _client(call, _reader(call)).v1.refunds.list(wanted)
        refunds = [refund.to_dict() for refund in found.data]
        ids = [str(refund["id"]) for refund in refunds]
        if found.has_more and (not ids or ids[-1] == after):
            raise Unreadable(200, "list_without_end", "The list says that there is more, and does not go on.")
        return refunds, bool(found.has_more)

    return _read(page)


def _read[T](ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (NotSent, Lost) as error:
        raise Unreadable(None, "unreachable", str(error)) from error
    except stripe.StripeError as error:
        raise Unreadable(error.http_status, error.code or "", str(error.user_message or "")) from error
    # JSON that is no object of Stripe's.
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(200, "unreadable", "The answer is nothing that Stripe would say.") from error


def _reader(call: Call) -> Carry:
    def carry(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        return exchange(method, url, headers=headers, body=body, timeout_seconds=call.timeout_seconds)

    return carry


def _client(call: Call, carry: Carry, api_version: str = "") -> stripe.StripeClient:
    return stripe.StripeClient(
        call.credential,
        base_addresses={"api": call.base_url.rstrip("/") or PAYMENTS},
        stripe_version=api_version or None,
        max_network_retries=0,
        http_client=_Wire(carry),
    )


def _create_refund(call: Call, carry: Carry, api_version: str = "") -> None:
    params = RefundParams.model_validate(call.params)
    token = identity.sign(
        audience="payments",
        tenant=call.tenant,
        subject=call.actor,
        agent=call.agent,
        scope=call.action,
        operation_id=call.operation_id,
        target=f"{call.target_type}:{call.target}",
    )
    _client(call, carry, api_version).v1.refunds.create(
        {
            "charge": params.charge,
            "amount": params.amount_minor,
            "reason": reason_of(params),
            "metadata": {
                "operation_id": call.operation_id,
                "key_digest": key_digest(call.idempotency_key),
                "order": params.order,
                "order_line": params.line,
            },
        },
        {"idempotency_key": call.idempotency_key, "headers": {identity.HEADER: token}},
    )
