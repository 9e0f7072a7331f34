"""A JSON API over HTTP: its answers are sorted into the classes here, once for every connector of that kind."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from operations.states import Verdict

from .base import Answer, Call, Connector, Json, Request
from .wire import Lost, NotSent, Reply, exchange

type Where = tuple[str, dict[str, str]]  # a path, and its query


class HttpConnector(Connector):
    """The API takes `Idempotency-Key`, marks a stored answer as replayed, and says no with `{"error": {"code", "message"}}`.

    What no list below knows, and every 5xx, is unknown: nothing is ever taken for a yes or a no by guessing.
    """

    refusals: ClassVar[frozenset[str]]  # 4xx codes: nothing was done, and never will be under this request
    not_now: ClassVar[frozenset[str]] = (
        frozenset()
    )  # codes that are documented as: nothing was done this time
    changed_body: ClassVar[str] = "idempotency_mismatch"
    in_flight: ClassVar[str] = "idempotency_key_in_use"
    absent: ClassVar[str]  # the code of a 404 that means: looked up, and not there

    @abstractmethod
    def headers(self, call: Call, scope: str) -> Mapping[str, str]:
        """Who asks, for which operation."""

    @abstractmethod
    def where_to_look(self, call: Call) -> Where:
        """What is read to find out whether the operation took effect."""

    @abstractmethod
    def evidence(self, call: Call, effect: Mapping[str, Json], *, under_our_key: bool = False) -> Answer:
        """What an effect says about the operation, read with care: it may be somebody else's, or none."""

    def found(self, call: Call, fields: Mapping[str, Json]) -> Answer:
        """What the answer to a look-up says: one effect, unless the API shows a list."""
        return self.evidence(call, fields)

    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        marks = {"Idempotency-Key": call.idempotency_key, "X-Operation-Id": call.operation_id}
        try:
            reply = exchange(
                request.method,
                call.base_url.rstrip("/") + request.path,
                headers={**self.headers(call, call.action), "Content-Type": "application/json", **marks},
                body=request.body,
                timeout_seconds=call.timeout_seconds,
                before_first_byte=before_first_byte,
            )
        except NotSent as error:
            return Answer(Verdict.NOT_SENT, code="unreachable", detail=str(error))
        except Lost as error:
            return Answer(Verdict.UNKNOWN, code="no_answer", detail=str(error))
        if 200 <= reply.status < 300:
            return self.evidence(call, reply.fields, under_our_key=reply.is_replayed)
        return self._no(call, reply)

    def look_up(self, call: Call) -> Answer:
        path, query = self.where_to_look(call)
        try:
            reply = self.read(call, path, query)
        except (NotSent, Lost) as error:
            return Answer(Verdict.UNREACHABLE, code="unreachable", detail=str(error))
        code = str(error_of(reply).get("code") or f"http_{reply.status}")
        match reply.status:
            case 200:
                return self.found(call, reply.fields)
            case 404 if code == self.absent:
                return Answer(Verdict.ABSENT, detail=str(error_of(reply).get("message") or ""))
            case 401 | 403:
                return Answer(Verdict.BLOCKED, code=code)
            case status if status == 429 or status >= 500:
                return Answer(Verdict.UNREACHABLE, code=code)
        return Answer(Verdict.UNKNOWN, code=code)

    def read(self, call: Call, path: str, query: dict[str, str]) -> Reply:
        """Any answer to a GET. Raises NotSent or Lost."""
        return exchange(
            "GET",
            call.base_url.rstrip("/") + path,
            params=query,
            headers=self.headers(call, "read"),
            timeout_seconds=call.timeout_seconds,
        )

    def _no(self, call: Call, reply: Reply) -> Answer:
        error = error_of(reply)
        code = str(error.get("code") or f"http_{reply.status}")
        if (ours := self.done_already(call, error)) is not None:
            return ours
        return Answer(
            self._class_of(reply, code),
            code=code,
            detail=str(error.get("message") or f"{self.name} answered HTTP {reply.status}."),
            retry_after_seconds=reply.retry_after_seconds,
        )

    def done_already(self, call: Call, error: Mapping[str, Json]) -> Answer | None:
        """A no that is a yes: it says that the operation itself has happened already."""
        return None

    def _class_of(self, reply: Reply, code: str) -> Verdict:
        if reply.is_replayed:
            return Verdict.SPENT
        if code == self.changed_body:
            return Verdict.CONTRADICTION
        if code == self.in_flight:
            return Verdict.BUSY
        if code in self.not_now:
            return Verdict.NOT_SENT
        if 400 <= reply.status < 500 and code in self.refusals:
            return Verdict.REFUSED
        return Verdict.BLOCKED if reply.status in (401, 403) else Verdict.UNKNOWN


def error_of(reply: Reply) -> Mapping[str, Any]:
    error = reply.fields.get("error")
    return error if isinstance(error, dict) else {}
