"""An event as it leaves us: unsealed and serialised once, whoever reads it and however often."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from agentops.kernel.ids import show
from agentops.kernel.sealed import CannotUnseal
from runs import events
from runs.models import RunEvent

PAGE = 200


@dataclass(frozen=True)
class Frame:
    """`text` is the data line: `{run_id, seq, type, at, data}` as JSON."""

    seq: int
    type: str
    text: str

    @cached_property
    def sse(self) -> bytes:
        return f"id: {self.seq}\nevent: {self.type}\ndata: {self.text}\n\n".encode()


def body(run_id: UUID, seq: int, kind: str, at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    moment = at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"run_id": show("run", run_id), "seq": seq, "type": kind, "at": moment, "data": data}


def body_of(event: RunEvent) -> dict[str, Any]:
    try:
        data = events.opened(event)
    except CannotUnseal:  # erased on request: the fact stays, its words are gone
        data = {"erased": True}
    return body(event.run_id, event.seq, event.type, event.at, data)


def frame(line: Mapping[str, Any]) -> Frame:
    return Frame(line["seq"], line["type"], json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def read(positions: Mapping[UUID, int]) -> dict[UUID, list[Frame]]:
    """The committed events of several runs, each after its position and at most PAGE of a run, in one query."""
    found: dict[UUID, list[Frame]] = {}
    for event in events.after(positions, PAGE):
        found.setdefault(event.run_id, []).append(frame(body_of(event)))
    return found


def page(run_id: UUID, after: int) -> list[Frame]:
    """The next PAGE events of one run; fewer: there are no more at this moment."""
    return read({run_id: after}).get(run_id, [])
