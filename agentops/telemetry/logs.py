"""Structured logs: JSON lines with the ids of run, step, operation, tenant and trace bound from the first line on."""

import logging
import logging.config
import sys
from typing import Any, cast

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars, clear_contextvars, merge_contextvars
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from agentops.kernel.redaction import mask

__all__ = ["bind_contextvars", "bound_contextvars", "clear_contextvars", "configure", "logger"]


def logger(name: str) -> FilteringBoundLogger:
    return cast(FilteringBoundLogger, structlog.get_logger(name))


_IDS = frozenset(
    {
        "run_id",
        "step",
        "operation_id",
        "approval_id",
        "tenant",
        "trace_id",
        "request_id",
        "timestamp",
        "level",
        "logger",
    }
)


def _masked(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: value if key in _IDS else mask(value) for key, value in event.items()}


def configure(*, json: bool, level: str = "INFO") -> None:
    """Send every log line, ours and the libraries', through one masked formatter to standard error."""
    shared: list[Any] = [
        merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _masked,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: Any = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level)
    for noisy in (
        "stripe",
        "httpx",
        "httpcore",
        "redis",
        "asyncio",
        "urllib3",
        "celery.worker.strategy",
        "celery.beat",
        "celery.app.trace",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
