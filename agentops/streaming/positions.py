"""Where a reader wants to go on, and what it is told where that place does not exist."""

import re
from dataclasses import dataclass

from django.db.models import Min

from agentops.kernel.clock import now
from runs.models import AgentRun, RunEvent

from .frames import Frame, body, frame

_POSITION = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Start:
    """`after` exists. Where the place asked for does not, `reason` says why, and `reset` comes before all events."""

    run: AgentRun
    after: int
    oldest: int
    reason: str = ""
    reset: Frame | None = None

    @property
    def is_past_the_end(self) -> bool:
        return self.run.is_terminal and self.after >= self.run.last_event_seq


def start(run: AgentRun, position: str | None) -> Start:
    """`position` as the client sent it: the number of the last event it has; None or empty: from the first."""
    first = RunEvent.objects.filter(run_id=run.id).aggregate(oldest=Min("seq"))["oldest"]
    oldest = first or run.last_event_seq + 1
    text = position or "0"
    after = int(text) if _POSITION.fullmatch(text) else -1
    if after < 0:
        reason = "unknown_position"
    elif after > run.last_event_seq:
        reason = "beyond_the_end"
    elif after < oldest - 1:
        reason = "older_than_kept"
    else:
        return Start(run, after, oldest)
    return Start(run, oldest - 1, oldest, reason, _reset(run, oldest, reason))


def under_way(run: AgentRun) -> dict[str, bool]:
    """The mark of a run that is on its way to an end and waits for its effects."""
    if run.is_terminal or not run.ending:
        return {}
    return {"cancelling" if run.ending == "cancelled" else "failing": True}


def _reset(run: AgentRun, oldest: int, reason: str) -> Frame:
    """What a reader has does not lead on from here: it is to forget its events and take the run's state instead."""
    data = {
        "reason": reason,
        "oldest_seq": oldest,
        "last_event_seq": run.last_event_seq,
        "status": run.status,
        "blocked_on": run.blocked_on,
        "status_url": f"/v1/runs/{run.public_id}",
    }
    return frame(body(run.id, oldest - 1, "stream.reset", now(), data | under_way(run)))
