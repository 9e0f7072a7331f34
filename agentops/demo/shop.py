"""The shop as the demo's tools see it: reads over HTTP, in the name of whoever the run acts for."""

import os
from typing import Any

import httpx

from agentops.sdk import Retryable, Terminal, ToolContext
from agentops.sdk.http import client

TIMEOUT = httpx.Timeout(10.0, connect=3.0)


def read(
    ctx: ToolContext, path: str, *, what: str, target: str | None = None, params: dict[str, str] | None = None
) -> Any:
    """The shop's JSON; its refusals as a sentence about `what` that may be told to a customer."""
    shop_url = os.environ.get("AGENTOPS_SHOP_URL", "").rstrip("/")
    if not shop_url:
        raise Terminal(
            "The shop's address is not configured: set AGENTOPS_SHOP_URL.", code="shop_not_configured"
        )
    try:
        with client(ctx.signal, timeout=TIMEOUT) as http:
            headers = ctx.identity_headers("shop", target)
            response = http.get(f"{shop_url}{path}", params=params, headers=headers)
    except httpx.TransportError as error:
        raise Retryable("The shop cannot be reached at the moment.", code="shop_unreachable") from error
    match response.status_code:
        case 200:
            return _json(response)
        case 404:
            raise Terminal(f"The shop knows no {what}.", code="not_found")
        case 403:
            raise Terminal(f"The shop does not show {what} to this customer.", code="not_yours")
        case 429 | 500 | 502 | 503 | 504:
            raise Retryable("The shop is too busy at the moment.", code="shop_unavailable")
        case status:
            raise Terminal(f"The shop refused to show {what} (HTTP {status}).", code="shop_refused")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise Retryable("The shop gave an answer that cannot be read.", code="shop_unreadable") from error
