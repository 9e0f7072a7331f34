"""The errors that an agent author meets: those a tool raises, and those the engine raises into a tool.

A tool's failure says whether its effect may have happened. `Retryable` and `Terminal` both promise *surely not*;
any other exception promises nothing, and the engine then tells the model that it may or may not have happened.
"""

from typing import Any


class SdkError(Exception):
    """Base of all of these; `code` is stable and goes to the model, the sentence may be reworded."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class Retryable(SdkError):
    """Surely not done, and worth another try; the engine waits `retry_after_seconds`, or backs off by itself."""

    code = "temporarily_unavailable"

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class Terminal(SdkError):
    """Surely not done, and trying again is useless; the sentence is told to the model."""

    code = "failed"


class OperationRefused(Terminal):
    """An operation that ended surely without effect: `status` says how (`rejected`, `expired`, `cancelled`, `failed`).

    `reason` is the sentence for the customer: the reviewer's words, the policy's, or the provider's.
    """

    code = "operation_refused"

    def __init__(self, operation_id: str, status: str, code: str, reason: str) -> None:
        super().__init__(reason, code=code)
        self.operation_id = operation_id
        self.status = status
        self.reason = reason


class OutcomeUnknown(SdkError):
    """An operation that was sent and may have happened, for longer than its action is waited for: a person is on it.

    Neither `Retryable` nor `Terminal`: nothing says that it was not done. The run may answer, and ends once it is settled.
    """

    code = "outcome_unknown"
    status = "unknown"

    def __init__(self, operation_id: str) -> None:
        super().__init__(
            "Its outcome is unknown, a person is on it. It may have happened: do not ask for it again."
        )
        self.operation_id = operation_id


class ChildFailed(Terminal):
    """A run that this one has started ended without an answer: `status` says how (`failed`, `cancelled`)."""

    code = "child_failed"

    def __init__(self, run_id: str, agent: str, status: str, code: str, reason: str) -> None:
        super().__init__(f"The run of {agent} was {status}: {reason}", code=code or status)
        self.run_id = run_id
        self.status = status
        self.reason = reason


class InvalidArguments(SdkError):
    """What the model asked for does not fit the tool's schema; the complaint never repeats the values."""

    code = "invalid_arguments"


class InvalidResult(SdkError):
    """A tool returned something else than it declares: a fault of the tool, after its work was done."""

    code = "invalid_result"


class DuplicateStep(SdkError):
    """One name for two steps in one life of a tool; give `key=` inside a loop."""

    code = "duplicate_step"


class JournalMismatch(SdkError):
    """A replay reached a recorded step with other arguments than before."""

    code = "journal_mismatch"


class ToolDefinitionError(SdkError):
    """A tool that cannot be offered to a model; raised where it is written, at import."""

    code = "tool_definition"


class AgentDefinitionError(SdkError):
    """An agent that cannot be registered; raised where it is written, at import."""

    code = "agent_definition"


def error_result(error: SdkError) -> dict[str, Any]:
    """What a model reads in place of a result; the end of an operation or a run is told with its id and status."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if isinstance(error, OperationRefused | OutcomeUnknown):
        told |= {"operation_id": error.operation_id, "status": error.status}
    if isinstance(error, ChildFailed):
        told |= {"run_id": error.run_id, "status": error.status}
    return {"error": told}
