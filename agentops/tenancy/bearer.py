"""The bearer gate that every public door shares."""

from agentops.kernel.problems import NotYours, Unauthorized

from .principals import Principal, authenticate

REALM = 'Bearer realm="agentops"'


def principal_of(authorization: str | None, channel: str) -> Principal:
    """The caller named by an `Authorization` header; raises Unauthorized with the `WWW-Authenticate` to send."""
    scheme, _, text = (authorization or "").partition(" ")
    if not text.strip() or scheme.lower() != "bearer":
        raise Unauthorized(
            "Send `Authorization: Bearer <token>`; a tenant administrator issues tokens.",
            headers={"WWW-Authenticate": REALM},
        )
    principal = authenticate(text.strip(), channel)
    if principal is None:
        raise Unauthorized(
            "This token is unknown, expired or revoked. Ask a tenant administrator for a new one.",
            code="invalid_token",
            headers={"WWW-Authenticate": f'{REALM}, error="invalid_token"'},
        )
    return principal


def require(principal: Principal, scope: str) -> None:
    """Raises NotYours where the caller's token has not got `scope`."""
    if not principal.may(scope):
        raise NotYours(f"This token has no scope {scope}; issue one that has it.", code="missing_scope")
