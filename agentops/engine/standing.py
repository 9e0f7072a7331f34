"""How a run stands where its status alone does not say it: paused, stopped for a person, or still stopping."""

from datetime import timedelta

from agentops.kernel.clock import Now
from operations.models import Operation
from operations.states import FINAL, OperationStatus
from runs.models import AgentRun, BusyCall
from runs.states import BLOCKED_FOR_PERSON, BlockedOn

BUSY_SECONDS = 10  # a worker repeats every second which of its threads are still busy


def busy_calls(run: AgentRun) -> int:
    """Calls that threads are still in though the run has no use for them."""
    return BusyCall.objects.filter(run_id=run.id, seen_at__gt=Now() - timedelta(seconds=BUSY_SECONDS)).count()


def standing(run: AgentRun) -> list[str]:
    """Sentences for people, the most important first; empty where the status says it all. People stand as `user:7`."""
    said = []
    busy = busy_calls(run) if run.ending else 0
    if run.ending and not run.is_terminal:
        said.append(f"Stopping: {_counted(run.open_effects, 'operation')} sent and not settled.")
    if busy:
        said.append(f"Stopping, {_counted(busy, 'step')} still busy; nothing that it does is kept.")
    if run.is_paused:
        said.append(f"Paused by {run.paused_by}{_because(run.pause_reason)}")
        said += [
            f"Approved meanwhile: {each.action} on {each.target_text}. It is sent once the run is resumed."
            for each in Operation.objects.filter(run_id=run.id, status=OperationStatus.APPROVED)
        ]
        said += [
            f"Settled meanwhile: {each.action} on {each.target_text}, {each.status}."
            for each in Operation.objects.filter(
                interests__run_id=run.id, status__in=FINAL, updated_at__gt=run.paused_at
            )
        ]
    if not run.ending and not run.is_terminal and BLOCKED_FOR_PERSON.intersection(run.blocked_on):
        said.append(f"Stopped: {run.error_detail} A person retries it or ends it.")
        if BlockedOn.RELEASE in run.blocked_on:
            said.append(
                f"Needs release {run.release.digest.rpartition(':')[2][:8]}; a worker that has it goes on."
            )
    return said


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else "."
