"""Before a run is run again: what each of its operations would meet, asked for once more by a run that has done nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never
from uuid import UUID

from agentops.kernel import canonical
from agentops.kernel.sealed import CannotUnseal
from approvals.asking import may_ask_again
from approvals.models import Approval
from approvals.policy import evaluate_again
from approvals.states import ApprovalStatus
from operations.connectors.base import CheckFailed
from operations.connectors.registry import ACTIONS, CONNECTORS
from operations.dispatch import call_of, loaded
from operations.models import Interest, Operation
from operations.occurrences import occurrences_of
from operations.sentences import action_title
from operations.states import OperationStatus
from runs.models import AgentRun
from runs.retries import line_of

from . import children

_S = OperationStatus


class Fate(StrEnum):
    REUSED = "reused"  # the rerun joins it, and gets or waits for the same outcome
    ANEW = "proposed_again"  # surely without effect: the next occurrence of the intent is proposed
    BLOCKED = "blocked"  # it is not proposed again as things stand; the rerun meets it as it is


# {ref}, {why} and {by} stand for what is known of the operation that would be met.
_SENTENCES: Mapping[str, str] = {
    "done": "It was done ({ref}). The rerun gets that receipt; nothing is sent.",
    "undone": "It was done and has been undone since. Only a person, who reopens it, lets it happen once more.",
    "reopened": "{by} has reopened it: it may be proposed once more.",
    "asked": "People are being asked. The rerun waits for the same answer.",
    "allowed": "It is allowed and not sent yet. The rerun waits for its outcome.",
    "under_way": "It is on its way. The rerun waits for its outcome.",
    "in_doubt": "It may have happened. Nothing is proposed until that is found out; the rerun waits for it.",
    "person_finds_out": "It may have happened, and a person has to find out. The rerun waits for that.",
    "failed": "It surely did not happen ({why}). It is proposed again, and decided again.",
    "denied": "It was not allowed ({why}). It is proposed again; rules and facts of today decide.",
    "rejected_before": "A person said no. It may be asked again: its facts have changed, or the time for that is over.",
    "cool_down": "A person said no, and nothing that it rests on has changed. The rerun is told that no.",
    "facts_unread": "A person said no, and what it rests on cannot be read now. Look again later.",
    "cancelled": "It was cancelled before anything was sent. It is proposed again.",
    "expired": "Nobody decided in time. It is proposed again, and asked again.",
    "no_action": "The present release has no action {action}.",
    "no_connection": "Its connection is switched off; nothing can be proposed over it.",
}


@dataclass(frozen=True)
class Prospect:
    """One operation of the source run, the one that its intent would meet now, and what would come of that."""

    operation: Operation
    met: Operation
    fate: Fate
    code: str

    @property
    def title(self) -> str:
        return action_title(self.met)

    @property
    def sentence(self) -> str:
        met = self.met
        why = (met.error_detail or met.error_code or "no reason is on record").rstrip(".")
        return _SENTENCES[self.code].format(
            ref=met.provider_ref or met.public_id, why=why, by=met.reopened_by or "", action=met.action
        )


type Standing = tuple[
    str, int, bool, bool
]  # an operation, its version, whether it was reopened, whether undone


@dataclass(frozen=True)
class Outlook:
    """The whole list, oldest first. A person confirms its digest; a list that has moved meanwhile has another."""

    source: AgentRun
    standings: list[Standing]  # of every occurrence that was looked at
    reruns: int  # that there are already: the same list starts one
    prospects: list[Prospect] = field(default_factory=list)

    @property
    def digest(self) -> str:
        lines = [[str(each.met.id), each.fate.value, each.code] for each in self.prospects]
        return canonical.digest("rerun", [str(self.source.id), self.reruns, self.standings, lines])

    def of(self, fate: Fate) -> list[Prospect]:
        return [each for each in self.prospects if each.fate == fate]

    def has_moved(self) -> bool:
        """Whether the rows are not as they were read. No provider is asked: good under a lock."""
        return (self.standings, self.reruns) != (_standings(self.source), self.source.reruns.count())


def outlook(source: AgentRun) -> Outlook:
    """Look at every operation of a run, its children's too, without a lock: providers are read for what people rejected."""
    read = Outlook(source, _standings(source), source.reruns.count())
    read.prospects.extend(_prospect(each) for each in operations_of(source))
    return read


def _standings(source: AgentRun) -> list[Standing]:
    return [
        (str(each.id), each.version, each.reopened_at is not None, each.reversed_at is not None)
        for operation in operations_of(source)
        for each in occurrences_of(operation)
    ]


def operations_of(run: AgentRun) -> list[Operation]:
    """What the run has asked for, with what it joined, what it inherited, and what the runs below it asked for; oldest first."""
    line = line_of(run)
    runs: set[UUID] = {each.id for each in line}
    runs.update(*(children.family_of(each.id) for each in line))
    wanted = Interest.objects.filter(run_id__in=runs).values("operation_id")
    return list(Operation.objects.filter(pk__in=wanted).order_by("id"))


def _prospect(operation: Operation) -> Prospect:
    """As `services.propose` will walk: the first occurrence that opens no next one is met."""
    for met in occurrences_of(operation):
        fate, code = _fate(loaded(met.id))
        if fate != Fate.ANEW:
            break
    if fate == Fate.ANEW:
        fate, code = _hindered(met) or (fate, code)
    return Prospect(operation, met, fate, code)


def _fate(operation: Operation) -> tuple[Fate, str]:
    """One arm per status: joined, proposed again, or neither."""
    status = _S(operation.status)
    if operation.in_doubt and status in (_S.PENDING, _S.APPROVED, _S.EXECUTING):
        return Fate.BLOCKED, "in_doubt"  # an earlier try of it may have happened, whatever it waits for now
    match status:
        case _S.PENDING:
            return Fate.REUSED, "asked"
        case _S.APPROVED:
            return Fate.REUSED, "allowed"
        case _S.EXECUTING:
            return Fate.REUSED, "under_way"
        case _S.UNKNOWN:
            return Fate.BLOCKED, "in_doubt"
        case _S.ESCALATED:
            return Fate.BLOCKED, "person_finds_out"
        case _S.SUCCEEDED if operation.reopened_at is not None:
            return Fate.ANEW, "reopened"
        case _S.SUCCEEDED if operation.reversed_at is not None:
            return Fate.BLOCKED, "undone"
        case _S.SUCCEEDED:
            return Fate.REUSED, "done"
        case _S.FAILED:
            return Fate.ANEW, "failed"
        case _S.REJECTED:
            return _rejected(operation)
        case _S.CANCELLED:
            return Fate.ANEW, "cancelled"
        case _S.EXPIRED:
            return Fate.ANEW, "expired"
        case _:
            assert_never(status)


def _rejected(operation: Operation) -> tuple[Fate, str]:
    if operation.reopened_at is not None:
        return Fate.ANEW, "reopened"
    if not Approval.objects.filter(operation=operation, status=ApprovalStatus.REJECTED).exists():
        return Fate.ANEW, "denied"
    try:
        facts = CONNECTORS[operation.connection.connector].check(call_of(operation))
    except (CheckFailed, CannotUnseal):
        return Fate.BLOCKED, "facts_unread"
    may = may_ask_again(evaluate_again(operation, facts), facts)
    return (Fate.ANEW, "rejected_before") if may(operation) else (Fate.BLOCKED, "cool_down")


def _hindered(operation: Operation) -> tuple[Fate, str] | None:
    """What no proposal of this release could get over."""
    if operation.action not in ACTIONS:
        return Fate.BLOCKED, "no_action"
    return None if operation.connection.enabled else (Fate.BLOCKED, "no_connection")
