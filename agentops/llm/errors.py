"""What can go wrong at the door to a model; the sentences hold no prompt, no answer and no key."""


class ModelError(Exception):
    """Base of both; `code` is stable."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ModelRetryable(ModelError):
    """Another try may succeed: a limit, an outage, a broken connection, an answer that broke off."""

    def __init__(self, message: str, *, code: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class ModelTerminal(ModelError):
    """The same request will fail again: a wrong key or name, a request that is refused, an unreadable answer."""


class ModelUnavailable(ModelTerminal):
    """A model that this installation must not or cannot call; the sentence says what to set."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="model_unavailable")
