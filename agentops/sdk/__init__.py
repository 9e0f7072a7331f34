"""What an agent author imports: plain Python, no Django."""

from agentops.sdk.agents import Agent, Call, Limits, Message, Reply
from agentops.sdk.context import Principal, StepContext, ToolContext
from agentops.sdk.errors import (
    ChildFailed,
    DuplicateStep,
    InvalidArguments,
    InvalidResult,
    JournalMismatch,
    OperationRefused,
    OutcomeUnknown,
    Retryable,
    SdkError,
    Terminal,
    ToolDefinitionError,
)
from agentops.sdk.tools import Tool, tool
from agentops.sdk.values import ChildRun, Money, OrderId, Receipt

__all__ = [
    "Agent",
    "Call",
    "ChildFailed",
    "ChildRun",
    "DuplicateStep",
    "InvalidArguments",
    "InvalidResult",
    "JournalMismatch",
    "Limits",
    "Message",
    "Money",
    "OperationRefused",
    "OrderId",
    "OutcomeUnknown",
    "Principal",
    "Receipt",
    "Reply",
    "Retryable",
    "SdkError",
    "StepContext",
    "Terminal",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "tool",
]
