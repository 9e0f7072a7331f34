"""The driver's side of the database: claim, checkpoint, park, renew and hand back over one asynchronous pool."""

import random
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast
from uuid import UUID

from django.conf import settings
from django.db import connection as django_connection
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from agentops.kernel import sealed
from agentops.kernel.ids import show
from agentops.kernel.sealed import Key
from agentops.sdk import agents as sdk_agents
from agentops.telemetry.logs import logger
from agentops.tenancy import vault
from operations.states import FINAL
from runs import budgets, conversations, fair, leases, releases, wakeups
from runs.events import Event, seal
from runs.fair import Shares
from runs.services import message_place, result_place

from . import loading
from .live import LeaseLost, LiveRun, Message
from .loading import step_place

log = logger(__name__)

CLAIM_AT_ONCE = 16
TENANTS_AT_ONCE = 32  # that one claim looks at; the others are first at the next


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
class Stranger:
    """A claimed run of an agent that this process has not got."""

    id: UUID
    key: Key
    owner: str
    epoch: int
    agent: str
    inbox_read: int
    inbox: list[Message] = field(default_factory=list)

    @property
    def public_id(self) -> str:
        return show("run", self.id)


@dataclass(frozen=True)
class Unread:
    """A claimed run whose rows this process could not read: a life of it that has ended already."""

    id: UUID
    tenant_id: int
    owner: str
    epoch: int
    crash_count: int


@dataclass(frozen=True)
class Claimed:
    runs: list[LiveRun]
    strangers: list[Stranger]
    unread: list[Unread]
    contended: bool  # nothing came, but somebody else was just claiming: look again soon


async def _is_open(conn: AsyncConnection[DictRow]) -> None:
    """A session that PostgreSQL has closed has something to read: only then is it asked, so that no checkpoint pays for it."""
    socket = select.poll()
    socket.register(conn.fileno(), select.POLLIN)
    if socket.poll(0):
        await AsyncConnectionPool.check_connection(conn)


def pool_of(size: int) -> AsyncConnectionPool[AsyncConnection[DictRow]]:
    """An unopened pool on Django's own database; open it in the loop that uses it."""
    params = django_connection.get_connection_params()
    wanted = ("dbname", "user", "password", "host", "port", "options")
    kwargs = {name: params[name] for name in wanted if params.get(name)}
    kwargs |= {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": dict_row,
        "application_name": "agentops-driver",
    }
    return AsyncConnectionPool(
        kwargs=kwargs,
        min_size=min(2, size),
        max_size=size,
        open=False,
        check=_is_open,
    )


class RunLedger:
    """Statements of `runs.leases` for one process, under its owner token."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[DictRow]], owner: str) -> None:
        self.pool = pool
        self.owner = owner

    def has(self) -> list[str]:
        """What this process can carry on, in the words of `AgentRun.needs`."""
        return [*releases.has(), *loading.actions_here()]

    async def have_needed(self, pool_name: str) -> int:
        """Make runs due that were parked for what this process has; returns how many."""
        async with self.pool.connection() as conn:
            return len(await _all(conn, leases.HAVE_NEEDED, pool=pool_name, has=self.has()))

    async def claim(self, pool_name: str, want: int) -> Claimed:
        """Take up to `want` runs: slots first, then, in the following statement, count and pick, then lease."""
        want = min(want, CLAIM_AT_ONCE)
        async with self.pool.connection() as conn, conn.transaction():
            ready = await _all(conn, leases.READY_TENANTS, pool=pool_name, at_once=TENANTS_AT_ONCE)
            if not ready:
                return Claimed([], [], [], contended=False)
            tenants = [row["tenant_id"] for row in ready]
            slots = await _all(conn, leases.LOCK_SLOTS, tenants=tenants)
            if not slots:
                return Claimed([], [], [], contended=True)
            mine = [row["tenant_id"] for row in slots]
            shares = await self._share(conn, pool_name, mine, want)
            locked = await _all(conn, leases.LOCK_RUNS, run_ids=shares.chosen) if shares.chosen else []
            rows = [await self._take(conn, row) for row in locked]
            if shares.blocked:
                seconds = settings.AGENTOPS_LEASE_SECONDS
                await conn.execute(leases.STEP_ASIDE, {"run_ids": shares.blocked, "lease_seconds": seconds})
        claimed = await self._load(rows)
        return replace(claimed, contended=bool(shares.blocked))  # behind them others may be ready

    async def _share(
        self, conn: AsyncConnection[DictRow], pool_name: str, tenants: list[int], want: int
    ) -> Shares:
        """Whose turn it is, among tenants whose slots are locked."""
        look = 2 * CLAIM_AT_ONCE
        rows = await _all(conn, leases.PICK, tenants=tenants, pool=pool_name, look=look, has=self.has())
        queues = fair.queues(rows)
        shares = fair.share(queues, want)
        await conn.execute(
            leases.SERVED,
            {
                "tenants": [queue.tenant_id for queue in queues],
                "deficits": [queue.deficit for queue in queues],
                "served": [queue.served for queue in queues],
            },
        )
        return shares

    async def leave_key(self, run: LiveRun) -> None:
        """Let the next run under the concurrency key come that `run` has held."""
        async with self.pool.connection() as conn:
            await conn.execute(leases.LEAVE_KEY, {"tenant_id": run.tenant_id, "key": run.concurrency_key})

    async def _take(self, conn: AsyncConnection[DictRow], picked: DictRow) -> DictRow:
        key = _key(picked)
        agent = sdk_agents.agent(picked["agent"])
        here = releases.here_instead_of(picked["manifest"], agent) if agent else ""
        release = {"release": here, "instead_of": picked["release_digest"]} if here else {}
        if picked["started_at"] is None:
            event = Event("run.started", {"worker": self.owner[:8], **release})
        else:
            why = "lease_lost" if picked["lease_owner"] else "wait" if picked["blocked_on"] else "hand_back"
            event = Event(
                "run.resumed", {"why": "release" if release else why, "worker": self.owner[:8], **release}
            )
        types, data = seal(picked["id"], key, [event])
        row = await _one(
            conn,
            leases.TAKE,
            run_id=picked["id"],
            owner=self.owner,
            lease_seconds=settings.AGENTOPS_LEASE_SECONDS,
            event_types=types,
            event_data=data,
        )
        assert row is not None  # locked by PICK in this transaction
        return {**row, "key": key}

    async def _load(self, rows: list[DictRow]) -> Claimed:
        if not rows:
            return Claimed([], [], [], contended=False)
        ids = [row["id"] for row in rows]
        async with self.pool.connection() as conn:
            steps = await _all(conn, loading.JOURNALS, ids=ids)
            facts = await _all(conn, loading.FACTS, ids=ids, final=sorted(FINAL))
            earlier = await _all(conn, conversations.EARLIER, run_ids=ids)
            letters = await _letters(conn, {row["id"]: row["inbox_taken"] for row in rows})
        by_id = {row["id"]: row for row in facts}
        runs, strangers, unread = [], [], []
        for row in rows:
            wakeups.changed_now(row["id"])
            agent = sdk_agents.agent(row["agent"])
            if agent is None:
                strangers.append(
                    Stranger(
                        row["id"],
                        row["key"],
                        self.owner,
                        row["lease_epoch"],
                        row["agent"],
                        inbox_read=row["inbox_taken"],
                    )
                )
                continue
            own = [step for step in steps if step["run_id"] == row["id"]]
            try:
                live = loading.live(row, by_id[row["id"]], own, agent, self.owner)
                live.inbox = _opened(live, letters)
                live.earlier = loading.earlier(live, earlier)
            except Exception:  # one run's rows must not keep the others from being carried on
                log.exception("run_unreadable", run=str(row["id"]))
                unread.append(
                    Unread(row["id"], row["tenant_id"], self.owner, row["lease_epoch"], row["crash_count"])
                )
                continue
            runs.append(live)
        return Claimed(runs, strangers, unread, contended=False)

    async def waiting(self, pool_name: str) -> bool:
        async with self.pool.connection() as conn:
            row = await _one(conn, leases.WAITING, pool=pool_name)
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
            row = await _one(conn, leases.CHECKPOINT, **arguments)
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
    ) -> bool:
        """Leave a run to what it waits for; False where a message came meanwhile, which is then in its `inbox`.

        `code` and `detail` say why a person must do something; `needs` what a worker must have to take it up again.
        """
        told = [Event("run.paused", {"why": min(kinds), "code": code, "detail": detail})] if code else []
        types, data = seal(run.id, run.key, told)
        async with self.pool.connection() as conn:
            ready = None
            if ready_in_seconds is not None:
                row = await _one(
                    conn,
                    "SELECT agentops_now() + make_interval(secs => %(seconds)s) AS at",
                    seconds=ready_in_seconds,
                )
                ready = row["at"] if row else None
            parked = await _one(
                conn,
                leases.PARK,
                run_id=run.id,
                owner=run.owner,
                epoch=run.epoch,
                inbox_read=run.inbox_read,
                ready_at=ready,
                blocked_on=sorted(kinds),
                needs=list(needs),
                error_code=code,
                error_detail=detail,
                event_types=types,
                event_data=data,
            )
            if parked is not None:
                if types:
                    wakeups.changed_now(run.id)
                return True
            run.inbox = _opened(run, await _letters(conn, {run.id: run.inbox_read}))
        if not run.inbox:  # it was not a message that kept it
            raise LeaseLost(run.public_id)
        return False

    async def reserve(self, run: LiveRun, worst_microusd: int) -> bool:
        """Set aside what the next turn may cost; False where the run's slice does not cover that."""
        mine = {"run_id": run.id, "owner": run.owner, "epoch": run.epoch}
        async with self.pool.connection() as conn:
            row = await _one(conn, budgets.RESERVE, worst=worst_microusd, **mine)
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
            rows = await _all(conn, leases.STILL_MINE, owner=self.owner)
        return {row["id"]: (row["lease_epoch"], row["paused_at"] is not None) for row in rows}

    async def cancelled_ago(self, run_ids: Sequence[UUID]) -> dict[UUID, float]:
        """For how many seconds those of the runs that were cancelled have been so."""
        async with self.pool.connection() as conn:
            rows = await _all(conn, leases.CANCELLED_AGO, run_ids=list(run_ids))
        return {row["id"]: row["seconds"] for row in rows}

    async def still_busy(self, calls: Sequence[tuple[UUID, str]]) -> None:
        """Tell which calls threads of this process are still in though nobody waits for them."""
        run_ids, keys = [run_id for run_id, _ in calls], [key for _, key in calls]
        async with self.pool.connection() as conn:
            await conn.execute(leases.STILL_BUSY, {"owner": self.owner, "run_ids": run_ids, "keys": keys})

    async def is_ending(self, run: LiveRun) -> bool:
        async with self.pool.connection() as conn:
            row = await _one(conn, "SELECT ending FROM runs_agentrun WHERE id = %(id)s", id=run.id)
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


async def _letters(conn: AsyncConnection[DictRow], read: dict[UUID, int]) -> list[DictRow]:
    """The messages of runs after those that each has read."""
    return await _all(conn, leases.READ_INBOX, run_ids=list(read), after=list(read.values()))


def _opened(run: Leased, letters: list[DictRow]) -> list[Message]:
    return [
        Message(
            row["n"],
            row["kind"],
            sealed.unseal_json(run.key, message_place(run.id, row["n"]), row["sealed_body"]),
        )
        for row in letters
        if row["run_id"] == run.id
    ]


async def _all(conn: AsyncConnection[DictRow], statement: str, **arguments: Any) -> list[DictRow]:
    cursor = await conn.execute(cast(Any, statement), arguments)
    return await cursor.fetchall()


async def _one(conn: AsyncConnection[DictRow], statement: str, **arguments: Any) -> DictRow | None:
    cursor = await conn.execute(cast(Any, statement), arguments)
    return await cursor.fetchone()


def _key(picked: DictRow) -> Key:
    """The data key of a picked run, from the columns that came with it: no query on the event loop."""
    return vault.opened_with(
        picked["data_key_id"], picked["wrapped"], picked["wrapped_by"], picked["parent_wrapped"]
    )


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


def soon() -> float:
    """A short random pause after contention."""
    return random.uniform(0.002, 0.02)
