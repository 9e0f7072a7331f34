"""The driver's side of the database: checkpoint, park, renew and hand back over one asynchronous pool."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

from agentops.kernel import sealed
from runs import budgets, leases, wakeups
from runs.events import Event, seal
from runs.services import result_place

from . import claims, loading
from .claims import Claimed, Claimer, Unread
from .live import Leased, LeaseLost, LiveRun
from .loading import step_place
from .statements import Pool, all_rows, one_row


@dataclass(frozen=True)
class NewStep:
    """A step to be journaled; `result` is JSON, `took_seconds` its duration."""

    key: str
    kind: str
    name: str
    result: Any
    status: str = "completed"
    asked: Any = None  # what it was asked, masked; None: nothing worth keeping
    input_digest: str = ""
    error_class: str = ""
    took_seconds: float = 0.0
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    counts: bool = False  # whether it is one of the run's limited steps


@dataclass(frozen=True)
class Ending:
    """The end that a checkpoint brings with it."""

    status: str
    result: Any = None
    code: str = ""
    detail: str = ""


class RunLedger:
    """Statements of `runs.leases` for one process, under its owner token."""

    def __init__(self, pool: Pool, owner: str) -> None:
        self.pool = pool
        self.owner = owner

    async def have_needed(self, pool_name: str) -> int:
        """Make runs due that were parked for what this process has; returns how many."""
        async with self.pool.connection() as conn:
            return len(await all_rows(conn, leases.HAVE_NEEDED, pool=pool_name, has=loading.has()))

    async def claim(self, pool_name: str, want: int) -> Claimed:
        """Take up to `want` runs."""
        return await claims.claim(self.pool, Claimer(self.owner, loading.has()), pool_name, want)

    async def leave_key(self, run: LiveRun) -> None:
        """Let the next run under the concurrency key come that `run` has held."""
        async with self.pool.connection() as conn:
            await conn.execute(leases.LEAVE_KEY, {"tenant_id": run.tenant_id, "key": run.concurrency_key})

    async def waiting(self, pool_name: str) -> bool:
        async with self.pool.connection() as conn:
            row = await one_row(conn, leases.WAITING, pool=pool_name)
        return bool(row and row["exists"])

    async def checkpoint(
        self,
        run: LiveRun,
        steps: Sequence[NewStep] = (),
        events: Sequence[Event] = (),
        ending: Ending | None = None,
    ) -> None:
        """Journal steps and events of a leased run in one commit; raises LeaseLost, and then nothing was written."""
        types, data = seal(run.id, run.key, events)
        cost = sum(step.cost_microusd for step in steps)
        taken = sum(step.counts for step in steps)
        sealed_result = None
        if ending is not None and ending.result is not None:
            sealed_result = sealed.seal_json(run.key, result_place(run.id), ending.result)
        arguments = {
            "run_id": run.id,
            "owner": run.owner,
            "epoch": run.epoch,
            "lease_seconds": settings.AGENTOPS_LEASE_SECONDS,
            "steps_taken": taken,
            "progress": any(step.status != "started" for step in steps),
            "cost_microusd": cost,
            "turn_ends": any(step.kind == "model" for step in steps),
            "inbox_read": run.inbox_read,
            "end_status": ending.status if ending else None,
            "sealed_result": sealed_result,
            "error_code": ending.code if ending else None,
            "error_detail": ending.detail if ending else None,
            "event_types": types,
            "event_data": data,
            **_columns(run, steps),
        }
        async with self.pool.connection() as conn:
            row = await one_row(conn, leases.CHECKPOINT, **arguments)
        if row is None:
            raise LeaseLost(run.public_id)
        run.spent_microusd, run.steps_taken = row["spent_microusd"], row["steps_taken"]
        run.paused = run.paused or row["paused_at"] is not None
        for step in steps:
            if step.status != "started":
                run.steps[step.key] = step.result
        if events:
            wakeups.changed_now(run.id)

    async def park(
        self,
        run: Leased,
        kinds: frozenset[str],
        ready_in_seconds: float | None,
        *,
        needs: Sequence[str] = (),
        code: str = "",
        detail: str = "",
        answered: bool = False,
    ) -> bool:
        """Leave a run to what it waits for; False where a message came meanwhile, which is then in its `inbox`.

        `code` and `detail` say why a person must do something; `needs` what a worker must have to take it up again. One that
        has `answered` has no deadline any more: only its effects keep it.
        """
        told = [Event("run.paused", {"why": min(kinds), "code": code, "detail": detail})] if code else []
        types, data = seal(run.id, run.key, told)
        async with self.pool.connection() as conn:
            ready = None
            if ready_in_seconds is not None:
                row = await one_row(
                    conn,
                    "SELECT agentops_now() + make_interval(secs => %(seconds)s) AS at",
                    seconds=ready_in_seconds,
                )
                ready = row["at"] if row else None
            parked = await one_row(
                conn,
                leases.PARK,
                run_id=run.id,
                owner=run.owner,
                epoch=run.epoch,
                inbox_read=run.inbox_read,
                ready_at=ready,
                blocked_on=sorted(kinds),
                needs=list(needs),
                answered=answered,
                error_code=code,
                error_detail=detail,
                event_types=types,
                event_data=data,
            )
            if parked is not None:
                if types:
                    wakeups.changed_now(run.id)
                return True
            run.inbox = claims.opened(run, await claims.letters_of(conn, {run.id: run.inbox_read}))
        if not run.inbox:  # it was not a message that kept it
            raise LeaseLost(run.public_id)
        return False

    async def reserve(self, run: LiveRun, worst_microusd: int) -> bool:
        """Set aside what the next turn may cost; False where the run's slice does not cover that."""
        mine = {"run_id": run.id, "owner": run.owner, "epoch": run.epoch}
        async with self.pool.connection() as conn:
            row = await one_row(conn, budgets.RESERVE, worst=worst_microusd, **mine)
        if row is None:
            raise LeaseLost(run.public_id)
        return bool(row["covered"])

    async def renew(self, runs: Sequence[LiveRun]) -> None:
        now = time.monotonic()
        ids = [run.id for run in runs if run.busy_until is None or now < run.busy_until]
        if ids:
            async with self.pool.connection() as conn:
                await conn.execute(
                    leases.RENEW,
                    {"owner": self.owner, "run_ids": ids, "lease_seconds": settings.AGENTOPS_LEASE_SECONDS},
                )

    async def still_mine(self) -> dict[UUID, tuple[int, bool]]:
        """The leased runs of this process: epoch, and whether a person has paused it."""
        async with self.pool.connection() as conn:
            rows = await all_rows(conn, leases.STILL_MINE, owner=self.owner)
        return {row["id"]: (row["lease_epoch"], row["paused_at"] is not None) for row in rows}

    async def cancelled_ago(self, run_ids: Sequence[UUID]) -> dict[UUID, float]:
        """For how many seconds those of the runs that were cancelled have been so."""
        async with self.pool.connection() as conn:
            rows = await all_rows(conn, leases.CANCELLED_AGO, run_ids=list(run_ids))
        return {row["id"]: row["seconds"] for row in rows}

    async def still_busy(self, calls: Sequence[tuple[UUID, str]]) -> None:
        """Tell which calls threads of this process are still in though nobody waits for them."""
        run_ids, keys = [run_id for run_id, _ in calls], [key for _, key in calls]
        async with self.pool.connection() as conn:
            await conn.execute(leases.STILL_BUSY, {"owner": self.owner, "run_ids": run_ids, "keys": keys})

    async def is_ending(self, run: LiveRun) -> bool:
        async with self.pool.connection() as conn:
            row = await one_row(conn, "SELECT ending FROM runs_agentrun WHERE id = %(id)s", id=run.id)
        return bool(row and row["ending"])

    async def hand_back(
        self, runs: Sequence[LiveRun | Unread], *, crashes: int = 0, pause_seconds: float = 0.0
    ) -> None:
        """Whoever is next may have them; `crashes` counts towards the end of a run that nobody can carry on."""
        if runs:
            mine = {"run_ids": [run.id for run in runs], "epochs": [run.epoch for run in runs]}
            how = {"owner": self.owner, "crashes": crashes, "pause_seconds": pause_seconds}
            async with self.pool.connection() as conn:
                await conn.execute(leases.HAND_BACK, {**mine, **how})


def _columns(run: LiveRun, steps: Sequence[NewStep]) -> dict[str, list[Any]]:
    return {
        "step_keys": [step.key for step in steps],
        "step_kinds": [step.kind for step in steps],
        "step_names": [step.name[:80] for step in steps],
        "step_statuses": [step.status for step in steps],
        "step_digests": [step.input_digest for step in steps],
        "step_asked": [
            None
            if step.asked is None
            else sealed.seal_json(run.key, step_place(run.id, step.key, "input"), step.asked)
            for step in steps
        ],
        "step_results": [
            None
            if step.status == "started"
            else sealed.seal_json(run.key, step_place(run.id, step.key), step.result)
            for step in steps
        ],
        "step_errors": [step.error_class for step in steps],
        "step_seconds": [step.took_seconds for step in steps],
        "step_models": [step.model for step in steps],
        "step_inputs": [step.input_tokens for step in steps],
        "step_outputs": [step.output_tokens for step in steps],
        "step_costs": [step.cost_microusd for step in steps],
    }
