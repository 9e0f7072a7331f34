"""The library's errors as ours: may the same request be sent again, and what can be said without quoting anything."""

from pydantic_ai import exceptions as library

from agentops.llm.errors import ModelError, ModelRetryable, ModelTerminal
from agentops.llm.routes import KEY_VARIABLES

MAX_RETRY_AFTER_SECONDS = 600

_RETRYABLE: tuple[tuple[type[library.AgentRunError], str, str], ...] = (
    (library.ModelRateLimitError, "rate_limited", "{model} limits our requests at the moment."),
    (library.ModelUnavailableError, "model_overloaded", "{model} cannot serve requests at the moment."),
    (library.ModelServerError, "model_server_error", "{model} failed on its side."),
    (library.ModelRequestTimeout, "model_timeout", "{model} did not finish its answer in time."),
    (library.ModelTimeoutError, "model_timeout", "{model} did not answer in time."),
    (
        library.ModelConnectionError,
        "connection_broke",
        "The connection to {model} could not be made or broke.",
    ),
)
_TERMINAL: tuple[tuple[type[library.AgentRunError], str, str], ...] = (
    (
        library.ModelQuotaExceededError,
        "quota_exceeded",
        "The account behind {model} has no credit left: top it up.",
    ),
    (library.ModelAuthenticationError, "unauthorized", "{model} does not accept the key: check {key}."),
    (library.ModelNotFoundError, "model_not_found", "{model} is not known there: check AGENTOPS_MODEL."),
    (library.ModelContextWindowExceededError, "too_long", "The conversation is too long for {model}."),
    (library.ModelRequestRejectedError, "request_rejected", "{model} does not accept the request{status}."),
    (library.ContentFilterError, "model_refused", "{model} declined to answer this conversation."),
)
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})


def classified(model: str, error: library.AgentRunError) -> ModelError:
    """Ours for the library's; a status that it puts in no category is judged by its number."""
    status = error.status_code if isinstance(error, library.ModelHTTPError) else None
    words = {
        "model": model,
        "key": KEY_VARIABLES.get(model.partition(":")[0], "its key"),
        "status": f" (HTTP {status})" if status else "",
    }
    for kind, code, sentence in _RETRYABLE:
        if isinstance(error, kind):
            return _retryable(error, code, sentence.format(**words))
    for kind, code, sentence in _TERMINAL:
        if isinstance(error, kind):
            return ModelTerminal(sentence.format(**words), code=code)
    if isinstance(error, library.ModelAPIError) and status is None:
        return _retryable(error, "answer_broke_off", f"The answer of {model} broke off.")
    if status in _RETRYABLE_STATUSES:
        return _retryable(error, "model_server_error", f"{model} could not take the request (HTTP {status}).")
    return ModelTerminal(
        f"The answer of {model} cannot be used ({type(error).__name__}{words['status']}).",
        code="unreadable_answer",
    )


def _retryable(error: library.AgentRunError, code: str, sentence: str) -> ModelRetryable:
    wait = error.retry_after if isinstance(error, library.ModelAPIError) else None
    if wait is not None:
        wait = min(max(wait, 0.0), float(MAX_RETRY_AFTER_SECONDS))
    return ModelRetryable(sentence, code=code, retry_after_seconds=wait)
