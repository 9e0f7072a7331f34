"""What a person may do with a run beside cancelling it, in words and in the service that does it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentops.engine import releases
from agentops.engine.pause import PauseReceipt, pause_run, resume_run
from agentops.engine.retry import RetryReceipt, retry_run
from runs.models import AgentRun
from runs.states import BLOCKED_FOR_PERSON, RunStatus


@dataclass(frozen=True)
class Verb:
    """One thing that a person may do with a run: its words, and what it calls with (tenant, run, actor, reason)."""

    name: str
    button: str
    question: str
    does: tuple[str, ...]
    carry_out: Callable[..., AgentRun]


def _pause(*of: Any, **how: Any) -> AgentRun:
    receipt: PauseReceipt = pause_run(*of, **how)
    return receipt.run


def _resume(*of: Any, **how: Any) -> AgentRun:
    receipt: PauseReceipt = resume_run(*of, **how)
    return receipt.run


def _retry(*of: Any, **how: Any) -> AgentRun:
    receipt: RetryReceipt = retry_run(*of, **how)
    return receipt.run


VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "pause",
            "Pause",
            "Pause this run?",
            (
                "Its present step ends. Then it begins nothing, proposes nothing and sends nothing until somebody resumes it.",
                "What was sent before is followed to its outcome. People can still decide what it has asked.",
            ),
            _pause,
        ),
        Verb(
            "resume",
            "Resume",
            "Resume this run?",
            ("It goes on from where it stands. What was approved meanwhile is checked again, and sent.",),
            _resume,
        ),
        Verb(
            "retry",
            "Retry",
            "Retry this run?",
            (
                "A run that stopped for a person goes on where it stands. One that ended goes on in a new run.",
                "Nothing that it completed is done or billed again, and no effect is made twice. What was withdrawn unsent is"
                " proposed anew, and asked anew.",
            ),
            _retry,
        ),
        Verb(
            "move",
            "Move to this release",
            "Move this run to the present release?",
            ("It goes on with the prompt, the tools and the model of the present release.",),
            releases.move_run,
        ),
    )
}


def offered(run: AgentRun) -> list[Verb]:
    """What a person may do with a run as it stands, beside cancelling it."""
    if run.ending and not run.is_terminal:
        return []
    if run.is_terminal:
        again = run.status != RunStatus.COMPLETED and not run.retries.exists()
        return [VERBS["retry"]] if again else []
    names = ["resume" if run.is_paused else "pause"]
    if run.lease_owner is None and BLOCKED_FOR_PERSON.intersection(run.blocked_on):
        names.append("retry")
    choices = releases.choices(run)
    if choices is not None and choices.move.possible:
        names.append("move")
    return [VERBS[name] for name in names]
