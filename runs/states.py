"""The states of a run."""

from collections.abc import Mapping

from django.db.models import TextChoices


class RunStatus(TextChoices):
    QUEUED = "queued"  # created; the first claim makes it running
    RUNNING = "running"  # leased, between two leases, paused, or waiting for anything but a person's approval
    WAITING_FOR_APPROVAL = (
        "waiting_for_approval"  # an approval is open and nothing is leased; its decision moves on
    )
    COMPLETED = "completed"  # the agent gave its answer
    FAILED = "failed"  # it ended for the reason in error_code
    CANCELLED = "cancelled"  # a person, a parent or a newer run ended it


_S = RunStatus
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
MOVES: Mapping[str, frozenset[str]] = {
    _S.QUEUED: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.WAITING_FOR_APPROVAL, _S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.WAITING_FOR_APPROVAL: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}


class BlockedOn(TextChoices):
    """What a parked run waits for; a run may wait for several kinds at once."""

    APPROVAL = "approval"
    OPERATION = "operation"
    CHILD = "child"
    TIMER = "timer"
    OPERATOR = "operator"
    RELEASE = "release"
    CREDENTIAL = "credential"
    BUDGET = "budget"


BLOCKED_FOR_PERSON = frozenset({BlockedOn.OPERATOR, BlockedOn.RELEASE})  # who retries it, or ends it


class StepStatus(TextChoices):
    STARTED = "started"  # committed beforehand, where a crash in between must be noticed
    COMPLETED = "completed"
    FAILED = "failed"  # a call whose failure was told to the model
    INTERRUPTED = (
        "interrupted"  # begun in an earlier life, not to be repeated: it may or may not have happened
    )


class StepKind(TextChoices):
    MODEL = "model"
    TOOL = "tool"
    STEP = "step"
    OPERATION = "operation"
