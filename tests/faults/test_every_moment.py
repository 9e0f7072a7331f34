"""The worker dies at every moment of the story, once each; another carries on, and the books show one effect."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentops.audit.models import AuditEntry
from approvals.models import Approval
from operations.models import Operation
from runs.models import AgentRun, RunEvent, Step
from tests.faults.lives import DIED
from tests.faults.worker import Lives, lives
from tests.stage import LARGE, SMALL, Stage, story

LEASE_SECONDS = 31


@pytest.fixture(scope="module")
def worker(provider_process, django_db_setup, tmp_path_factory) -> Iterator[Lives]:
    """Nobody is there who would take a hint: every one is lost."""
    log = tmp_path_factory.mktemp("lives") / "log"
    with lives(provider_process, log, REDIS_URL="redis://127.0.0.1:1/0") as started:
        yield started


@dataclass
class Case:
    """One run of the story, from its start to its end, through as many lives as it takes."""

    stage: Stage
    worker: Lives
    asks: bool
    order: dict[str, Any]
    run: AgentRun
    mails_before: int

    def live(self, until: str, die_at: int | str | None = None) -> dict[str, Any]:
        return self.worker.live(until, self.stage.mail_folder, [self.run], die_at)

    def decide(self) -> None:
        approval = Approval.objects.get(operation__run=self.run, status="requested")
        self.stage.decide(approval, self.stage.tenant.memberships.get(role="reviewer").user)

    def recover(self, until: str) -> None:
        """What the dead one held runs out, and a fresh life carries on; no completed turn is asked for again."""
        done = Step.objects.filter(run_id=self.run.pk, kind="model").count()
        self.stage.move_clock(LEASE_SECONDS)
        life = self.live(until)
        assert life["code"] == 0, life
        made = Step.objects.filter(run_id=self.run.pk, kind="model").count()
        assert life["turns"] == made - done

    def assert_whole(self) -> None:
        run = AgentRun.objects.get(pk=self.run.pk)
        assert (run.status, run.open_effects) == ("completed", 0)
        turns = [data["turn"] for type, data in story(run) if type == "assistant.message"]
        assert turns == list(range(1, len(turns) + 1))
        numbers = list(RunEvent.objects.filter(run_id=run.pk).order_by("seq").values_list("seq", flat=True))
        assert numbers == list(range(1, run.last_event_seq + 1))
        operations = Operation.objects.filter(run_id=run.pk)
        assert {each.status for each in operations} == {"succeeded"}
        moves = [type for type, _ in story(run) if type.startswith("operation.")]
        ids = [each.public_id for each in operations]
        assert AuditEntry.objects.filter(object_type="operation", object_id__in=ids).count() == len(moves)
        for approval in Approval.objects.filter(operation__run=run):
            assert approval.consumed_by == approval.operation_id


def refund_effects(case: Case) -> None:
    (refund,) = case.stage.refunds(case.order)
    assert refund["operation_id"] == case.run.operations.get(action="refund.create").public_id
    assert len(case.stage.mails()) == case.mails_before + 1


def cancel_effects(case: Case) -> None:
    assert len(case.stage.cancellations(case.order)) == 1


def a_case(stage: Stage, worker: Lives, amount_minor: int, text: str) -> Case:
    order = stage.order(amount_minor)
    asks = amount_minor > 5_000 or text.startswith("Cancel")
    return Case(stage, worker, asks, order, stage.start(text.format(order["id"])), len(stage.mails()))


STORIES: list[tuple[str, int, str, Callable[[Case], None]]] = [
    ("a refund that policy allows", SMALL, "Refund {}, it arrived damaged.", refund_effects),
    ("a refund that a person approves", LARGE, "Refund {}, it arrived damaged.", refund_effects),
    ("a cancellation that a person approves", SMALL, "Cancel order {}.", cancel_effects),
]


@pytest.mark.parametrize(("name", "amount", "text", "effects"), STORIES, ids=[name for name, *_ in STORIES])
def test_at_whatever_moment_the_worker_dies_the_effect_happens_once(
    stage, worker, name, amount, text, effects
):
    """First an undisturbed run, to know the moments; then one run for each of them, before and after the approval."""
    stage.reviewer()
    rehearsal = a_case(stage, worker, amount, text)
    rehearsal.live("asked" if rehearsal.asks else "ended", "never")
    undisturbed = a_case(stage, worker, amount, text)
    until = "asked" if undisturbed.asks else "ended"
    asking, sending = undisturbed.live(until)["moments"], []
    if undisturbed.asks:
        undisturbed.decide()
        sending = undisturbed.live("ended")["moments"]
    effects(undisturbed)
    undisturbed.assert_whole()
    # Up to the proposal every story goes the way of the first one.
    known = asking.index("a commit") if undisturbed.asks else 0
    for die_at in range(known + 1, len(asking) + 1):
        case = a_case(stage, worker, amount, text)
        assert case.live(until, die_at)["code"] == DIED
        case.recover(until)
        if case.asks:
            case.decide()
            case.live("ended")
        effects(case)
        case.assert_whole()
    asked = [a_case(stage, worker, amount, text) for _ in sending]
    worker.live("asked", stage.mail_folder, [case.run for case in asked])
    for die_at, case in enumerate(asked, 1):
        case.mails_before = len(stage.mails())
        case.decide()
        assert case.live("ended", die_at)["code"] == DIED
        case.recover("ended")
        effects(case)
        case.assert_whole()
    print(f"\n{name}: died at {len(asking) - known} moments before and {len(sending)} after the approval")
