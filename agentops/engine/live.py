"""A run as the driver holds it: its lease, its journal, what it reported in this life."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import django.db
import psycopg

from agentops.kernel.ids import show
from agentops.kernel.sealed import Key
from agentops.kernel.transitions import LostRace
from agentops.sdk.agents import Agent
from agentops.sdk.signals import StopSignal

from .stepper import Journal


class LeaseLost(Exception):
    """Another process has the run, or it is being ended: write nothing more of it."""


# PostgreSQL is away, or a rival was quicker too often: it ends this life of the run, and says nothing about its tools.
LIFE_LOST = (
    django.db.OperationalError,
    django.db.InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    LostRace,
)


class Waiting(BaseException):  # not an Exception: a tool that catches everything must not swallow it
    """The call waits for people, a provider or a timer; the tool is called again when that has moved."""

    def __init__(self, *kinds: str, until: float | None = None) -> None:
        super().__init__(*kinds)
        self.kinds = frozenset(kinds)
        self.until = until  # seconds from now, for a timer


@dataclass(frozen=True)
class Message:
    """What a run was told: the place in its inbox, a kind, and a body (JSON)."""

    n: int
    kind: str
    body: dict[str, Any]


class Leased(Protocol):
    """A run under a lease of this process."""

    @property
    def id(self) -> UUID: ...
    @property
    def public_id(self) -> str: ...

    key: Key
    owner: str
    epoch: int
    inbox_read: int
    inbox: list[Message]


@dataclass
class LiveRun:
    """One leased run of this process."""

    id: UUID
    tenant_id: int
    tenant: str
    actor: str
    principal: str
    channel: str
    agent: Agent
    release: str
    trace_id: str
    key: Key
    owner: str
    epoch: int
    input: str
    earlier: list[tuple[str, str]]  # what was asked before in its conversation, and answered
    steps: dict[str, Any]
    started: set[str]  # keys that were begun in an earlier life and not finished
    max_steps: int
    steps_taken: int
    budget_microusd: int
    spent_microusd: int
    inbox_read: int  # the last message that this life has taken; the next commit of the run says so
    deadline: float | None  # on this process's monotonic clock
    crash_count: int  # lives without progress, this one among them
    missing: list[str]  # what of its release it needs and this process has not got
    concurrency_key: str
    aftermath: bool  # whether somebody must be told of its end
    taken_at: datetime  # by PostgreSQL's clock, at this moment of ours:
    taken: float = field(default_factory=time.monotonic)
    waits: dict[str, frozenset[str]] = field(default_factory=dict)
    timer: float | None = None  # the earliest timer of its calls, on this process's monotonic clock
    inbox: list[Message] = field(default_factory=list)  # read from PostgreSQL, not yet taken by this life
    in_model: bool = False
    paused: bool = False  # a person wants it to begin nothing more
    ended: bool = False
    busy_until: float | None = None  # a hung step is not kept alive past its own limit
    signal: StopSignal = field(default_factory=StopSignal)
    task: "asyncio.Task[None] | None" = None

    @property
    def public_id(self) -> str:
        return show("run", self.id)

    def now(self) -> datetime:
        """PostgreSQL's time, without asking it: a worker's own clock may be anything."""
        return self.taken_at + timedelta(seconds=time.monotonic() - self.taken)

    def busy(self, seconds: float) -> None:
        """The present step may take that long from now; beyond it, the lease is not renewed."""
        self.busy_until = max(self.busy_until or 0.0, time.monotonic() + seconds)

    def wake_within(self, seconds: float | None) -> None:
        """One of its calls waits for so many seconds from now, if for any; meanwhile others may take theirs."""
        if seconds is not None:
            at = time.monotonic() + seconds
            self.timer = at if self.timer is None else min(self.timer, at)

    def due_in(self) -> float | None:
        """Seconds until its earliest timer or its deadline; None where it has neither."""
        at = min((moment for moment in (self.timer, self.deadline) if moment is not None), default=None)
        return None if at is None else max(0.0, at - time.monotonic())

    def journal(self) -> Journal:
        return Journal(
            steps=self.steps,
            waits=self.waits,
            max_steps=self.max_steps,
            steps_taken=self.steps_taken,
            budget_microusd=self.budget_microusd,
            spent_microusd=self.spent_microusd,
            past_deadline=self.deadline is not None and time.monotonic() >= self.deadline,
        )
