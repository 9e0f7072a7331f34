"""Run, inbox and lease against a small model: whatever order things happen in, the rows are as the model says."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentops.audit.entries import SYSTEM
from agentops.engine import control, pause
from agentops.engine.ledger import Ending, NewStep, RunLedger
from agentops.engine.live import LeaseLost, LiveRun
from agentops.engine.statements import pool_of
from agentops.kernel.problems import Problem
from runs.events import Event
from runs.models import AgentRun, InboxMessage, RunEvent, Step
from runs.services import approvals_left, lock, wake
from runs.states import TERMINAL
from tests import factories

WORKERS = ("one", "two")
LEASE_SECONDS = 30


@dataclass
class Model:
    """What the run should be."""

    owner: str | None = None
    epoch: int = 0
    expired: bool = False
    due: bool = True
    paused: bool = False
    waiting: bool = False  # parked for a person, who has not answered
    ended: str = ""
    heard: int = 0  # messages in the inbox
    taken: int = 0
    steps: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)  # dedupe keys

    @property
    def claimable(self) -> bool:
        return (
            not self.ended
            and not self.paused
            and (self.owner is None or self.expired)
            and (self.due or self.expired)
        )


class Lives(RuleBasedStateMachine):
    """One run, two workers with one or two lives each: late ones keep what they believe to hold."""

    world: Any  # the tenant, a loop with its pool, the clock

    def __init__(self) -> None:
        super().__init__()
        self.run_row = factories.run(self.world.principal, "Where is order A-1001?")
        AgentRun.objects.exclude(pk=self.run_row.pk).filter(finished_at=None).update(ready_at=None)
        self.model = Model()
        self.held: list[tuple[LiveRun, str]] = []  # every life there ever was

    def do(self, work: Any) -> Any:
        return self.world.loop.run_until_complete(work)

    def ledger(self, worker: str) -> RunLedger:
        return self.world.ledgers[worker]

    def row(self) -> AgentRun:
        return AgentRun.objects.get(pk=self.run_row.pk)

    def is_holder(self, live: LiveRun) -> bool:
        model = self.model
        return not model.ended and (model.owner, model.epoch) == (live.owner, live.epoch)

    # --- workers -----------------------------------------------------------------------------------------------------
    @rule(worker=st.sampled_from(WORKERS))
    def claim(self, worker: str) -> None:
        taken = self.do(self.ledger(worker).claim("default", 4)).runs
        assert [each.id for each in taken] == ([self.run_row.id] if self.model.claimable else [])
        for live in taken:
            self.held.append((live, worker))
            self.model.owner, self.model.epoch = worker, self.model.epoch + 1
            self.model.expired = self.model.due = self.model.waiting = False
            assert live.epoch == self.model.epoch
            assert set(live.steps) == self.model.steps
            assert [message.n for message in live.inbox] == list(
                range(self.model.taken + 1, self.model.heard + 1)
            )

    @precondition(lambda self: self.held)
    @rule(data=st.data(), step=st.integers(1, 4))
    def checkpoint(self, data: st.DataObject, step: int) -> None:
        """By the holder or by any zombie; whoever writes has read its inbox."""
        live, worker = data.draw(st.sampled_from(self.held))
        if live.inbox:
            live.inbox_read, live.inbox = live.inbox[-1].n, []
        key = f"turn-{step}"
        work = self.ledger(worker).checkpoint(
            live, [NewStep(key, "model", "x", {"n": live.epoch})], [Event("tool.progress", {})]
        )
        if self.is_holder(live):
            self.do(work)
            self.model.steps.add(key)
            self.model.taken = max(self.model.taken, live.inbox_read)
            self.model.expired = False  # a lease that nobody took is its owner's: it is renewed
        else:
            with pytest.raises(LeaseLost):
                self.do(work)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        live, worker = data.draw(st.sampled_from(self.held))
        if live.inbox:
            live.inbox_read, live.inbox = live.inbox[-1].n, []
        work = self.ledger(worker).park(live, frozenset({"approval"}), None)
        if not self.is_holder(live):
            with pytest.raises(LeaseLost):
                assert not self.do(work)  # a letter may be read; the next write is refused
                raise LeaseLost
        elif live.inbox_read == self.model.heard:
            assert self.do(work) is True
            self.model.owner, self.model.due, self.model.waiting = None, False, True
            self.model.expired, self.model.taken = False, self.model.heard
        else:
            assert self.do(work) is False
            assert [message.n for message in live.inbox] == list(
                range(live.inbox_read + 1, self.model.heard + 1)
            )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def hand_back(self, data: st.DataObject) -> None:
        live, worker = data.draw(st.sampled_from(self.held))
        self.do(self.ledger(worker).hand_back([live]))
        if self.is_holder(live):
            self.model.owner, self.model.expired, self.model.due = None, False, True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        live, worker = data.draw(st.sampled_from(self.held))
        work = self.ledger(worker).checkpoint(
            live, events=[Event("run.completed", {})], ending=Ending("completed", {"text": "."})
        )
        if self.is_holder(live):
            self.do(work)
            self.model.ended = "completed"
        else:
            with pytest.raises(LeaseLost):
                self.do(work)

    @rule()
    def expire(self) -> None:
        self.world.move_clock(LEASE_SECONDS + 1)
        self.model.expired = self.model.owner is not None

    # --- outsiders ---------------------------------------------------------------------------------------------------
    @rule(kind=st.sampled_from(["approval", "operation"]), name=st.sampled_from([None, "a", "b"]))
    def message(self, kind: str, name: str | None) -> None:
        """New, doubled, or late: after the end it is refused."""
        is_new = not self.model.ended and (name is None or f"{kind}/{name}" not in self.model.told)
        assert wake(self.run_row.id, kind, {"said": name}, dedupe_key=name) is is_new
        if is_new:
            self.model.heard += 1
            self.model.due = True
            if name:
                self.model.told.add(f"{kind}/{name}")

    @rule()
    def approve(self) -> None:
        """The last question is answered; whoever holds the run at that moment is told to look again."""
        with transaction.atomic():
            approvals_left(lock(self.run_row.tenant_id, self.run_row.id), still_open=False)
        if self.model.owner is not None and not self.model.ended:
            self.model.heard += 1
            self.model.due = True
        self.model.waiting = False

    @rule()
    def cancel(self) -> None:
        self._outside(
            lambda: control.cancel_run(
                self.run_row.tenant_id, self.run_row.id, actor=SYSTEM, reason="Enough."
            ),
            allowed=not self.model.ended,
        )
        self.model.ended = self.model.ended or "cancelled"

    @rule()
    def pause(self) -> None:
        self._outside(
            lambda: pause.pause_run(self.run_row.tenant_id, self.run_row.id, actor=SYSTEM, reason="Wait."),
            allowed=not self.model.ended and not self.model.paused,
        )
        self.model.paused = not self.model.ended

    @rule()
    def resume(self) -> None:
        self._outside(
            lambda: pause.resume_run(self.run_row.tenant_id, self.run_row.id, actor=SYSTEM, reason="Go on."),
            allowed=self.model.paused and not self.model.ended,
        )
        self.model.due = self.model.due or self.model.paused
        self.model.paused = False

    def _outside(self, work: Any, *, allowed: bool) -> None:
        if allowed:
            work()
        else:
            with pytest.raises(Problem):
                work()

    # --- what always holds -------------------------------------------------------------------------------------------
    @invariant()
    def the_rows_are_as_the_model_says(self) -> None:
        row, model = self.row(), self.model
        owner = None if model.ended else model.owner
        assert (row.lease_owner, row.inbox_seq, row.inbox_taken) == (owner, model.heard, row.inbox_taken)
        assert model.ended or row.inbox_taken == model.taken
        assert row.lease_epoch == model.epoch or (
            model.ended == "cancelled" and row.lease_epoch > model.epoch
        )
        assert (row.status in TERMINAL) == bool(model.ended)
        assert row.status == (model.ended or row.status)
        assert (row.status == "waiting_for_approval") == (model.waiting and not model.ended)
        assert (row.paused_at is not None) == (model.paused and model.ended != "cancelled")
        of_run = {"run_id": row.pk}
        assert set(Step.objects.filter(**of_run).values_list("key", flat=True)) == model.steps
        numbers = RunEvent.objects.filter(**of_run).order_by("seq").values_list("seq", flat=True)
        assert list(numbers) == list(range(1, row.last_event_seq + 1))
        assert InboxMessage.objects.filter(**of_run).count() == model.heard
        if model.ended:
            last = RunEvent.objects.filter(**of_run).order_by("-seq").values_list("type", flat=True).first()
            assert last == f"run.{model.ended}"


def test_in_whatever_order_things_happen_the_rows_are_as_the_model_says(transactional_db, move_clock):
    class World:
        principal = factories.principal(factories.tenant())
        loop = asyncio.new_event_loop()

    World.move_clock = staticmethod(move_clock)
    pool = pool_of(2)
    World.loop.run_until_complete(pool.open())
    World.ledgers = {worker: RunLedger(pool, worker) for worker in WORKERS}
    Lives.world = World
    try:
        run_state_machine_as_test(
            Lives,
            settings=settings(
                max_examples=25,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        World.loop.run_until_complete(pool.close())
        World.loop.close()
        connection.close()
