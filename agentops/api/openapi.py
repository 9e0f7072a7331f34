"""The OpenAPI document: what ninja knows of the routes, with scopes, problems, headers and the event stream."""

from functools import cache
from typing import Any

from .door import BearerToken
from .problems import MEDIA_TYPE
from .rest import api
from .shapes import ProblemOf

TITLE = "AgentOps"
VERSION = "1"
SCHEME = "BearerToken"
INTRODUCTION = """\
Operate AI agents that change real things. Start a run, follow its events, let people decide what policy asks them to,
read the receipt of every effect.

Every request carries `Authorization: Bearer <token>`. Bodies are JSON in UTF-8, at most 256 KiB, with snake_case names
and nothing beside the declared fields; times are RFC 3339 in UTC; money is in minor units with an ISO 4217 currency.
Whatever goes wrong is problem+json (RFC 9457): branch on `code`, quote `request_id`. Ids of another tenant answer 404.
`X-Request-ID` and `traceparent` are taken in and passed on.
"""
# Status -> (name of the component, what it means, code of its example, detail of its example).
PROBLEMS: dict[int, tuple[str, str, str, str]] = {
    400: ("BadRequest", "The request cannot be read.", "malformed_json", "The body is not valid JSON."),
    401: ("Unauthorized", "No valid token.", "invalid_token", "This token is unknown, expired or revoked."),
    403: ("Forbidden", "The scope or the right is missing.", "missing_scope", "This token has no scope runs:write."),
    404: ("NotFound", "Not there, or another tenant's.", "not_found", "There is no such run."),
    405: ("MethodNotAllowed", "Not a method of this address.", "method_not_allowed", "It knows GET."),
    409: ("Conflict", "The state does not allow it.", "conflict", "It was decided meanwhile."),
    413: ("TooLarge", "The body is too large.", "body_too_large", "A body has at most 256 KiB."),
    415: ("NotJson", "The body is not JSON.", "unsupported_media_type", "Send JSON."),
    422: ("Invalid", "The body is not valid.", "invalid", "Not valid: /agent. See `errors`."),
    429: ("TooMany", "Too many requests, or too many open runs.", "rate_limited", "Send the next one in 12 s."),
    500: ("Internal", "A fault of ours.", "internal", "It is in our log under this request_id."),
    503: ("Unavailable", "Not available now.", "unavailable", "Repeat the request later."),
}
