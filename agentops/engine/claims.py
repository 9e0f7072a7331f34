"""Claiming runs: which tenant's turn it is, which runs are taken under a lease, and what this process then holds."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from django.conf import settings
from psycopg.rows import DictRow

from agentops.kernel import sealed
from agentops.kernel.ids import show
from agentops.kernel.sealed import CannotUnseal, Key
from agentops.sdk import agents as sdk_agents
from agentops.telemetry.logs import logger
from agentops.tenancy import vault
from operations.states import FINAL
from runs import conversations, fair, leases, releases, wakeups
from runs.events import Event, seal
from runs.fair import Shares
from runs.services import message_place

from . import loading
from .live import Leased, LiveRun, Message
from .statements import Connection, Pool, all_rows, one_row

log = logger(__name__)

CLAIM_AT_ONCE = 16
TENANTS_AT_ONCE = 32  # that one claim looks at; the others are first at the next


@dataclass(frozen=True)
class Claimer:
    """Who takes runs: a process by its owner token, and what it can carry on, in the words of `AgentRun.needs`."""

    owner: str
    has: Sequence[str]


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


async def claim(pool: Pool, claimer: Claimer, pool_name: str, want: int) -> Claimed:
    """Take up to `want` runs: slots first, then, in the following statement, count and pick, then lease."""
    want = min(want, CLAIM_AT_ONCE)
    async with pool.connection() as conn, conn.transaction():
        ready = await all_rows(conn, leases.READY_TENANTS, pool=pool_name, at_once=TENANTS_AT_ONCE)
        if not ready:
            return Claimed([], [], [], contended=False)
        tenants = [row["tenant_id"] for row in ready]
        slots = await all_rows(conn, leases.LOCK_SLOTS, tenants=tenants)
        if not slots:
            return Claimed([], [], [], contended=True)
        mine = [row["tenant_id"] for row in slots]
        shares = await _share(conn, claimer, pool_name, mine, want)
        locked = await all_rows(conn, leases.LOCK_RUNS, run_ids=shares.chosen) if shares.chosen else []
        keys = _keys(locked)
        rows = [await _take(conn, claimer, row, keys[row["id"]]) for row in locked if row["id"] in keys]
        shut = [row["id"] for row in locked if row["id"] not in keys]
        for statement, run_ids in ((leases.STEP_ASIDE, shares.blocked), (leases.PUT_OFF, shut)):
            if run_ids:
                seconds = settings.AGENTOPS_LEASE_SECONDS
                await conn.execute(statement, {"run_ids": run_ids, "lease_seconds": seconds})
    claimed = await _load(pool, claimer, rows)
    return replace(claimed, contended=bool(shares.blocked or shut))  # behind them others may be ready


async def _share(conn: Connection, claimer: Claimer, pool_name: str, tenants: list[int], want: int) -> Shares:
    """Whose turn it is, among tenants whose slots are locked."""
    look = 2 * CLAIM_AT_ONCE
    rows = await all_rows(conn, leases.PICK, tenants=tenants, pool=pool_name, look=look, has=claimer.has)
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


async def _take(conn: Connection, claimer: Claimer, picked: DictRow, key: Key) -> DictRow:
    agent = sdk_agents.agent(picked["agent"])
    here = releases.here_instead_of(picked["manifest"], agent) if agent else ""
    release = {"release": here, "instead_of": picked["release_digest"]} if here else {}
    if picked["started_at"] is None:
        event = Event("run.started", {"worker": claimer.owner[:8], **release})
    else:
        why = "lease_lost" if picked["lease_owner"] else "wait" if picked["blocked_on"] else "hand_back"
        event = Event(
            "run.resumed", {"why": "release" if release else why, "worker": claimer.owner[:8], **release}
        )
    types, data = seal(picked["id"], key, [event])
    row = await one_row(
        conn,
        leases.TAKE,
        run_id=picked["id"],
        owner=claimer.owner,
        lease_seconds=settings.AGENTOPS_LEASE_SECONDS,
        event_types=types,
        event_data=data,
    )
    assert row is not None  # locked by PICK in this transaction
    return {**row, "key": key}


async def _load(pool: Pool, claimer: Claimer, rows: list[DictRow]) -> Claimed:
    if not rows:
        return Claimed([], [], [], contended=False)
    ids = [row["id"] for row in rows]
    async with pool.connection() as conn:
        steps = await all_rows(conn, loading.JOURNALS, ids=ids)
        facts = await all_rows(conn, loading.FACTS, ids=ids, final=sorted(FINAL))
        earlier = await all_rows(conn, conversations.EARLIER, run_ids=ids)
        letters = await letters_of(conn, {row["id"]: row["inbox_taken"] for row in rows})
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
                    claimer.owner,
                    row["lease_epoch"],
                    row["agent"],
                    inbox_read=row["inbox_taken"],
                )
            )
            continue
        own = [step for step in steps if step["run_id"] == row["id"]]
        try:
            live = loading.live(row, by_id[row["id"]], own, agent, claimer.owner)
            live.inbox = opened(live, letters)
            live.earlier = loading.earlier(live, earlier)
        except Exception:  # one run's rows must not keep the others from being carried on
            log.exception("run_unreadable", run=str(row["id"]))
            unread.append(
                Unread(row["id"], row["tenant_id"], claimer.owner, row["lease_epoch"], row["crash_count"])
            )
            continue
        runs.append(live)
    return Claimed(runs, strangers, unread, contended=False)


async def letters_of(conn: Connection, read: dict[UUID, int]) -> list[DictRow]:
    """The messages of runs after those that each has read."""
    return await all_rows(conn, leases.READ_INBOX, run_ids=list(read), after=list(read.values()))


def opened(run: Leased, letters: list[DictRow]) -> list[Message]:
    return [
        Message(
            row["n"],
            row["kind"],
            sealed.unseal_json(run.key, message_place(run.id, row["n"]), row["sealed_body"]),
        )
        for row in letters
        if row["run_id"] == run.id
    ]


def _keys(picked: list[DictRow]) -> dict[UUID, Key]:
    """The data keys of picked runs, from the columns that came with them: no query on the event loop. A run is left out whose
    key this process cannot open: it was erased, or the master key is not here."""
    keys = {}
    for row in picked:
        try:
            keys[row["id"]] = vault.opened_with(
                row["data_key_id"], row["wrapped"], row["wrapped_by"], row["parent_wrapped"]
            )
        except CannotUnseal as error:
            log.error("run_unreadable", run_id=show("run", row["id"]), error=str(error))
    return keys


def soon() -> float:
    """A short random pause after contention."""
    return random.uniform(0.002, 0.02)
