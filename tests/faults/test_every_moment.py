"""The worker dies at every moment of the story, once each; another carries on, and the books show one effect."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentops.audit.models import AuditEntry
from approvals.models import Approval
from operations.models import Finding, Operation
from runs.models import AgentRun, RunEvent, Step
from tests.faults.lives import DIED
from tests.faults.worker import Lives, lives
from tests.stage import LARGE, SMALL, Stage, answer, story, types

LEASE_SECONDS = 31
# Each fault point of the ledger: its moment, and what the first to die there leaves, as the operation's status and effects.
POINTS = {
    "F0: nothing is on record": ("a commit", "", 0),
    "F1: the attempt is on record, nothing is sent": ("a request", "executing", 0),
    "F2: the provider has done it, we have no answer": ("an answer", "executing", 1),
    "F3: the answer is in memory": ("an answer in memory", "executing", 1),
    "F4: the outcome is written, but not for good": ("an outcome's commit", "executing", 1),
    "F5: outcome and event are stored, nobody is told": ("an outcome", "succeeded", 1),
}


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

    def live(self, until: str, die_at: int | str | None = None, **more: Any) -> dict[str, Any]:
        return self.worker.live(until, self.stage.mail_folder, [self.run], die_at, **more)

    def turns(self) -> int:
        return Step.objects.filter(run_id=self.run.pk, kind="model").count()

    def die(self, until: str, die_at: int, met: dict[str, tuple[str, int]]) -> None:
        """At most the turn that it was in the middle of has been asked for and is not in the journal.

        `met` keeps what the first death at each kind of moment leaves.
        """
        done = self.turns()
        life = self.live(until, die_at)
        assert life["code"] == DIED
        assert 0 <= life["turns"] - (self.turns() - done) <= 1
        assert len(life["moments"]) == die_at
        if life["moments"][-1] not in met:
            met[life["moments"][-1]] = self.on_record()

    def on_record(self) -> tuple[str, int]:
        first = Operation.objects.filter(run_id=self.run.pk).order_by("id").first()
        effects = self.stage.refunds(self.order) + self.stage.cancellations(self.order)
        return first.status if first else "", len(effects)

    def decide(self) -> None:
        approval = Approval.objects.get(operation__run=self.run, status="requested")
        self.stage.decide(approval, self.stage.tenant.memberships.get(role="reviewer").user)

    def recover(self, until: str) -> None:
        """What the dead one held runs out, and a fresh life carries on; no completed turn is asked for again."""
        done = self.turns()
        self.stage.move_clock(LEASE_SECONDS)
        life = self.live(until)
        assert life["code"] == 0, life
        assert life["turns"] == self.turns() - done

    def seen(self) -> tuple[Any, ...]:
        """All that a run is, but for names and times: its result, its steps, what its readers were told."""
        steps = Step.objects.filter(run_id=self.run.pk).order_by("key")
        told = [type for type in types(self.run) if type.startswith(("assistant.message", "tool."))]
        words = answer(self.run).replace(self.order["id"], "ORDER")
        for operation in Operation.objects.filter(run_id=self.run.pk).exclude(provider_ref=""):
            words = words.replace(operation.provider_ref, operation.action)
        kinds = ("key", "kind", "name", "status", "error_class", "attempt", "model", "cost_microusd")
        return words, list(steps.values_list(*kinds)), told

    def assert_whole(self, like: "Case | None" = None) -> None:
        if like is not None:
            assert self.seen() == like.seen()
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
    met: dict[str, tuple[str, int]] = {}
    # Up to the proposal every story goes the way of the first one.
    known = asking.index("a commit") if undisturbed.asks else 0
    for die_at in range(known + 1, len(asking) + 1):
        case = a_case(stage, worker, amount, text)
        case.die(until, die_at, met)
        case.recover(until)
        if case.asks:
            case.decide()
            case.live("ended")
        effects(case)
        case.assert_whole(undisturbed)
    asked = [a_case(stage, worker, amount, text) for _ in sending]
    worker.live("asked", stage.mail_folder, [case.run for case in asked])
    for die_at, case in enumerate(asked, 1):
        case.mails_before = len(stage.mails())
        case.decide()
        case.die("ended", die_at, met)
        case.recover("ended")
        effects(case)
        case.assert_whole(undisturbed)
    for point, (moment, *left) in POINTS.items():
        assert met[moment] == tuple(left), point
    print(f"\n{name}: died at {len(asking) - known} moments before and {len(sending)} after the approval")


@pytest.mark.case("G-6")
def test_at_whatever_moment_a_worker_stands_still_it_writes_nothing_when_it_wakes(stage, worker):
    """SIGSTOP past its lease; another takes over and finishes; SIGCONT: it tries to write and to send, and is refused.

    A moment inside a transaction is left out: PostgreSQL itself ends the session that sleeps there.
    """
    text = "Refund {}, it arrived damaged."
    a_case(stage, worker, SMALL, text).live("ended", "never")
    undisturbed = a_case(stage, worker, SMALL, text)
    moments = undisturbed.live("ended")["moments"]
    alone = [at for at, kind in enumerate(moments, 1) if kind in ("a checkpoint", "a write", "a request")]
    for freeze_at in alone:
        case = a_case(stage, worker, SMALL, text)
        zombie = case.live("ended", freeze_at, freeze=True)
        assert zombie["code"] is None
        case.recover("ended")
        before = everything_of(case.run)
        assert worker.wake(zombie["pid"])["code"] == 0
        assert everything_of(case.run) == before, moments[freeze_at - 1]
        refund_effects(case)
        case.assert_whole(undisturbed)
    assert {moments[at - 1] for at in alone} >= {"a checkpoint", "a request"}
    assert "stale_worker" in worker.log.read_text()


def test_a_worker_that_stands_still_between_its_attempt_and_its_first_byte_sends_nothing_when_it_wakes(
    stage, worker
):
    """Meanwhile another has done it, once; what the one that wakes holds is too old to leave."""
    text = "Refund {}, it arrived damaged."
    a_case(stage, worker, SMALL, text).live("ended", "never")
    undisturbed = a_case(stage, worker, SMALL, text)
    freeze_at = undisturbed.live("ended")["moments"].index("a request") + 1
    before = stage.provider.writes()
    case = a_case(stage, worker, SMALL, text)
    zombie = case.live("ended", freeze_at, freeze=True, within=0.5)
    assert zombie["code"] is None
    assert case.on_record() == ("executing", 0)
    time.sleep(0.6)
    case.recover("ended")
    assert worker.wake(zombie["pid"])["code"] == 0
    refund_effects(case)
    case.assert_whole(undisturbed)
    assert stage.provider.writes() == before + 1
    said = Finding.objects.filter(operation__run=case.run, operation__action="refund.create", source="answer")
    # Told when it woke: its answer stands behind that of the one that came later.
    assert list(said.order_by("number").values_list("attempt", "code")) == [(2, ""), (1, "past_send_by")]


def everything_of(run: AgentRun) -> tuple[Any, ...]:
    """Every row of the run, each column of it, but how much evidence there is: a late answer is some."""
    columns = [field.attname for field in Operation._meta.concrete_fields if field.name != "findings_taken"]
    of_run = [
        list(rows.order_by("pk").values_list(*(columns if rows.model is Operation else ())))
        for rows in (
            AgentRun.objects.filter(pk=run.pk),
            Step.objects.filter(run_id=run.pk),
            RunEvent.objects.filter(run_id=run.pk),
            Operation.objects.filter(run_id=run.pk),
        )
    ]
    return tuple(of_run)
