"""The bearer gate that every public door shares."""

from agentops.kernel.problems import NotYours, Unauthorized

from .principals import Principal, authenticate

REALM = 'Bearer realm="agentops"'
# What the person behind a token must be permitted in its tenant, beside the token's own scope. Deciding is not here:
# it asks for the right on the proposal itself.
RIGHTS = {"runs:read": "view_runs", "operations:read": "view_operations", "approvals:read": "view_approvals"}


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


def may(principal: Principal, scope: str) -> bool:
    """Whether the token has `scope` and, where it is bound to a person, that person the right that goes with it."""
    right = RIGHTS.get(scope)
    return principal.may(scope) and (right is None or _permitted(principal, right))


def require(principal: Principal, scope: str) -> None:
    """Raises NotYours where the token has not got `scope`, or the person behind it not the right that goes with it."""
    if not principal.may(scope):
        raise NotYours(f"This token has no scope {scope}; issue one that has it.", code="missing_scope")
    if scope in RIGHTS:
        require_right(principal, RIGHTS[scope])


def require_right(principal: Principal, right: str) -> None:
    """Raises NotYours where the token is bound to a person who has not got `right` in its tenant."""
    if not _permitted(principal, right):
        raise NotYours(
            f"{principal.person} has no right {right} in {principal.tenant}; a tenant administrator grants it.",
            code="no_right",
        )


def _permitted(principal: Principal, right: str) -> bool:
    person = principal.person
    return person is None or person.has_perm(f"tenancy.{right}", principal.tenant)
