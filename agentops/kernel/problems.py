"""One error family: a problem becomes problem+json, an admin message or a protocol error at its surface."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict


class Fault(TypedDict):
    """One invalid place of a request: a JSON pointer and what is wrong there."""

    pointer: str
    detail: str


class Body(TypedDict):
    """RFC 9457 problem details as this product sends them."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    errors: NotRequired[list[Fault]]


class Problem(Exception):
    """Something a caller can be told: `code` is stable, `detail` names the object and the next step."""

    status = 400
    code = "bad_request"
    title = "The request cannot be carried out"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: Sequence[Fault] = (),
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.errors = list(errors)
        self.headers = headers or {}
        self.extra = extra or {}

    def body(self, *, instance: str, request_id: str) -> Body:
        body = Body(
            type=f"urn:agentops:problem:{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            instance=instance,
            code=self.code,
            request_id=request_id,
        )
        if self.errors:
            body["errors"] = self.errors
        body.update(self.extra)  # type: ignore[typeddict-item]  # extension members of RFC 9457
        return body


class BadRequest(Problem):
    pass


class Unauthorized(Problem):
    status, code, title = 401, "unauthorized", "No valid token"


class NotYours(Problem):
    """The caller is known and the object too, but the caller has not got this right."""

    status, code, title = 403, "forbidden", "Not permitted"


class NotFound(Problem):
    """Not there, or another tenant's: the two are not told apart."""

    status, code, title = 404, "not_found", "Not found"


class NotAllowed(Problem):
    status, code, title = 405, "method_not_allowed", "Not a method of this address"


class Conflict(Problem):
    status, code, title = 409, "conflict", "The state does not allow it"


class TooLate(Conflict):
    """It could have been done once; somebody or the clock was quicker."""

    code, title = "too_late", "Already settled"


class TooLarge(Problem):
    status, code, title = 413, "body_too_large", "The body is too large"


class UnsupportedMedia(Problem):
    status, code, title = 415, "unsupported_media_type", "Not JSON"


class Invalid(Problem):
    status, code, title = 422, "invalid", "The request is not valid"


class TooMany(Problem):
    status, code, title = 429, "rate_limited", "Too many requests"


class Unavailable(Problem):
    status, code, title = 503, "unavailable", "Not available now"


class Internal(Problem):
    """A fault of ours. What happened stands in the log under the request id, never in the answer."""

    status, code, title = 500, "internal", "Something went wrong on our side"
