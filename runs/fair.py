"""Who is served next: deficit round robin over tenants, room under concurrency keys. Pure: no clock, no database."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


@dataclass(frozen=True)
class Candidate:
    """A run that is ready; `held` leases are live under its concurrency key, of at most `limit`."""

    id: UUID
    key: str = ""
    limit: int = 1
    held: int = 0


@dataclass
class Queue:
    """A tenant's ready runs in the order in which it wants them, as far as they were looked at."""

    tenant_id: int
    weight: int
    deficit: int  # runs that it may still be given before its turn is over
    free: int  # leases that it may take beside those it has
    ready: list[Candidate]
    served: bool = False  # its turn came, and is over


@dataclass
class Shares:
    chosen: list[UUID] = field(default_factory=list)
    blocked: list[UUID] = field(default_factory=list)  # looked at, and nothing is free under their key


def queues(rows: Sequence[Mapping[str, Any]]) -> list[Queue]:
    """The rows of `leases.PICK`, by tenant; one without a ready run has a row without an id."""
    found: dict[int, Queue] = {}
    for row in rows:
        tenant_id = row["tenant_id"]
        if tenant_id not in found:
            found[tenant_id] = Queue(tenant_id, row["weight"], row["deficit"], row["free"], [])
        if row["id"] is not None:
            run = Candidate(row["id"], row["concurrency_key"], row["concurrency_limit"], row["held"])
            found[tenant_id].ready.append(run)
    return list(found.values())


def share(queues: Sequence[Queue], want: int) -> Shares:
    """At most `want` runs of `queues`, which stand in the order of their turns: each turn a tenant is given as many runs as
    it weighs. A turn that `want` cuts short goes on next time; what a tenant does not use up is not kept for it.

    Writes `deficit` and `served` of the queues whose turn came.
    """
    shares = Shares()
    turns = {queue.tenant_id: _with_room(queue, shares) for queue in queues}
    waiting = list(queues)
    while waiting and len(shares.chosen) < want:
        for queue in list(waiting):
            ready = turns[queue.tenant_id]
            if queue.deficit < 1:
                queue.deficit += queue.weight
            while queue.deficit and ready and len(shares.chosen) < want:
                shares.chosen.append(ready.pop(0))
                queue.deficit -= 1
            if not ready:
                queue.deficit = 0
                waiting.remove(queue)
            queue.served = queue.deficit == 0
            if len(shares.chosen) == want:
                break
    return shares


def _with_room(queue: Queue, shares: Shares) -> list[UUID]:
    """What of its ready runs a tenant may have now, by its own limit and by those of their keys."""
    held: Counter[str] = Counter()
    allowed: list[UUID] = []
    for run in queue.ready:
        if run.key and run.held + held[run.key] >= run.limit:
            shares.blocked.append(run.id)
        elif len(allowed) < queue.free:
            held[run.key] += 1
            allowed.append(run.id)
    return allowed
