"""The door of REST: who calls, how often, with which scope, and how much of a body."""

from typing import cast

from django.http import HttpRequest
from ninja.security.http import HttpAuthBase

from agentops.tenancy import rates
from agentops.tenancy.bearer import principal_of, require
from agentops.tenancy.principals import Principal

from . import body
from .problems import EXTRA_HEADERS

CHANNEL = "rest"


class BearerToken(HttpAuthBase):
    """Lets a request in whose token has `scope`; the view finds its principal with `caller`."""

    openapi_scheme = "bearer"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> Principal:
        principal = principal_of(request.headers.get("Authorization"), CHANNEL)
        quota = rates.take(principal)
        if quota is not None:
            request.META[EXTRA_HEADERS] = quota.headers
        require(principal, self.scope)
        body.check(request)
        return principal


def caller(request: HttpRequest) -> Principal:
    """The principal that the door let in."""
    return cast(Principal, request.auth)  # type: ignore[attr-defined]
