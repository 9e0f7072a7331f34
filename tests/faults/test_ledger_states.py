"""The ledger against a model of a provider, in any order of whatever may happen: at most one effect, and never a guess."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as play

from agentops.kernel.problems import Conflict
from approvals.models import Approval
from approvals.services import AUTHORITY, decide, expire_due
from operations.connectors.base import Answer, Call, Fact, Facts, Guard
from operations.connectors.registry import CONNECTORS
from operations.dispatch import Departure, depart, dispatch, loaded, send
from operations.evidence import Evidence
from operations.findings import take
from operations.models import Operation
from operations.reconcile import carry_on
from operations.states import FINAL, Source, Verdict
from operations.states import OperationStatus as S
from runs.models import AgentRun
from tests import factories
from tests.ledger import CHARGED, Ledger, assert_told

STRIPE = CONNECTORS["stripe"]
ASK = [{"code": "ask", "when": "true", "outcome": "require_approval"}]
ANSWERS = (
    "applied", "accepted", "refused", "not sent", "blocked", "empty", "lost", "dropped", "flying", "error", "error for nothing",
)  # fmt: skip
EXAMPLES, STEPS = 25, 14


@dataclass
class Books:
    """What a provider keeps: effects, the answers stored under keys, and requests that it has not come to yet."""

    has_keys: bool = True
    next_answer: str = "applied"
    effects: list[dict[str, Any]] = field(default_factory=list)
    stored: dict[str, Answer] = field(default_factory=dict)
    flying: list[Call] = field(default_factory=list)

    def of(self, operation_id: str) -> list[dict[str, Any]]:
        return [each for each in self.effects if each["operation_id"] == operation_id]

    def apply(self, call: Call, status: str = "succeeded") -> Answer:
        effect = {
            "id": f"re_{len(self.effects)}", "operation_id": call.operation_id, "status": status, "amount": call.amount_minor,
        }  # fmt: skip
        self.effects.append(effect)
        return self.keep(call, self.shown(effect))

    def shown(self, effect: dict[str, Any]) -> Answer:
        verdict = Verdict.APPLIED if effect["status"] == "succeeded" else Verdict.ACCEPTED
        return Answer(verdict, provider_ref=effect["id"], receipt=dict(effect))

    def keep(self, call: Call, answer: Answer) -> Answer:
        if self.has_keys:
            self.stored[call.idempotency_key] = answer
        return answer

    def arrive(self) -> None:
        """What was under way takes effect; by then it is seen."""
        flying, self.flying = self.flying, []
        for call in flying:
            if call.idempotency_key not in self.stored:
                self.apply(call)

    def settle(self) -> None:
        for effect in self.effects:
            effect["status"] = "succeeded"

    # --- as a connector meets it ------------------------------------------------------------------------------------
    def check(self, call: Call) -> Facts:
        theirs = Counter({each["operation_id"]: each["amount"] for each in self.effects})
        left = CHARGED - sum(each["amount"] for each in self.effects)
        guard = Guard(">=", call.amount_minor or 0)
        return Facts(
            (Fact("refundable_minor", left, "payments", guard),), capacity_minor=CHARGED, theirs=theirs
        )

    def send(self, call: Call, request: Any, before_first_byte: Any) -> Answer:
        before_first_byte()
        earlier = self.stored.get(call.idempotency_key)
        if earlier is not None:
            spent = earlier.verdict not in (Verdict.APPLIED, Verdict.ACCEPTED)
            return Answer(Verdict.SPENT, code="stored") if spent else earlier
        if self.has_keys and any(each.idempotency_key == call.idempotency_key for each in self.flying):
            return Answer(Verdict.BUSY, code="in_use")
        no_answer = Answer(Verdict.UNKNOWN, code="no_answer")
        match self.next_answer:
            case "applied":
                return self.apply(call)
            case "accepted":
                return self.apply(call, "pending")
            case "refused":
                return self.keep(call, Answer(Verdict.REFUSED, code="charge_disputed"))
            case "not sent":
                return Answer(Verdict.NOT_SENT, code="rate_limit")
            case "blocked":
                return Answer(Verdict.BLOCKED, code="api_key_expired")
            case "empty":
                return Answer(Verdict.CONTRADICTION, code="no_receipt")
            case "lost":
                self.apply(call)
            case "flying":
                self.flying.append(call)
            case "error":
                self.apply(call)
                self.keep(call, Answer(Verdict.UNKNOWN, code="http_500"))
            case "error for nothing":
                self.keep(call, Answer(Verdict.UNKNOWN, code="http_500"))
        return no_answer

    def look_up(self, call: Call) -> Answer:
        mine = self.of(call.operation_id)
        return self.shown(mine[0]) if mine else Answer(Verdict.ABSENT)


class Machine(RuleBasedStateMachine):
    """One intent: several runs that may want it, several workers that come to it, one provider."""

    ledger: Ledger
    books: Books

    @initialize(has_keys=st.booleans(), asks=st.booleans())
    def begin(self, has_keys: bool, asks: bool) -> None:
        Machine.books = Books(has_keys)
        weaker = replace(STRIPE.abilities, honours_idempotency_keys=has_keys, key_lifetime_seconds=24 * 3600)
        type(STRIPE).abilities = weaker
        factories.policy(self.ledger.tenant, "refund.create", ASK if asks else factories.ALWAYS)
        number = AgentRun.objects.count()
        self.order = {"id": f"A-{number}", "charge": f"ch_{number}"}
        self.run = self.ledger.run()
        self.moved = 0.0
        self.stopped: list[tuple[Departure, float]] = []
        self.held: list[tuple[Any, Evidence]] = []
        self.ledger.ask(self.run, self.order)

    def made(self) -> Operation:
        return self.ledger.operations(self.order)[-1]

    # --- what may happen --------------------------------------------------------------------------------------------
    @rule(answer=st.sampled_from(ANSWERS))
    def the_provider_will_answer(self, answer: str) -> None:
        self.books.next_answer = answer

    @rule(seconds=st.sampled_from([1, 6, 25, 90, 700, 25 * 3_600]))
    def time_passes(self, seconds: float) -> None:
        self.books.arrive()
        self.ledger.move_clock(seconds)
        self.moved += seconds

    @rule()
    def what_was_accepted_is_settled(self) -> None:
        self.books.settle()

    @precondition(lambda self: Approval.objects.filter(operation=self.made(), status="requested").exists())
    @rule(verdict=st.sampled_from(["approve", "approve", "approve", "reject"]))
    def a_person_decides(self, verdict: str) -> None:
        approval = Approval.objects.get(operation=self.made(), status="requested")
        given = {"reason": "Seen.", "proposal_digest": approval.proposal_digest, "channel": "rest"}
        try:
            decide(
                self.ledger.tenant.id, approval.id, reviewer=self.ledger.reviewer, verdict=verdict, **given
            )
        except Conflict as late:
            assert late.code in ("expired", "run_ended", "settled", "over_remaining")

    @rule()
    def a_worker_sends_what_is_due(self) -> None:
        dispatch(self.made().id, AUTHORITY, worker="two")

    @rule()
    def a_worker_looks_at_it(self) -> None:
        carry_on(self.made().id, AUTHORITY, worker="three")

    @rule()
    def the_same_run_asks_again(self) -> None:
        run = AgentRun.objects.get(pk=self.run.pk)
        if not (run.is_terminal or run.ending):
            self.ledger.ask(run, self.order, owner="four")

    @rule()
    def another_run_asks(self) -> None:
        self.run = self.ledger.run()
        self.ledger.ask(self.run, self.order)

    @precondition(lambda self: self.made().status == S.APPROVED)
    @rule(sends=st.booleans())
    def a_worker_is_stopped_after_its_attempt(self, sends: bool) -> None:
        """Before its first byte, or with the answer in its hands."""
        departure = depart(loaded(self.made().id), AUTHORITY, worker="stopped")
        if departure is None:
            return
        if sends:
            answer = self.books.send(departure.call, departure.request, lambda: None)
            self.held.append((departure.operation_id, Evidence(Source.ANSWER, answer, departure.attempt)))
        else:
            self.stopped.append((departure, self.moved))

    @precondition(lambda self: self.stopped)
    @rule()
    def a_stopped_worker_wakes(self) -> None:
        departure, since = self.stopped.pop()
        send(replace(departure, send_by=departure.send_by - (self.moved - since)))

    @precondition(lambda self: self.held)
    @rule(twice=st.booleans())
    def a_late_answer_is_taken(self, twice: bool) -> None:
        operation_id, evidence = self.held.pop()
        for _ in range(1 + twice):
            take(operation_id, evidence)

    @rule()
    def the_provider_tells_by_itself(self) -> None:
        made = self.made()
        for effect in self.books.of(made.public_id):
            take(made.id, Evidence(Source.WEBHOOK, self.books.shown(effect)))

    @rule()
    def what_nobody_decided_expires(self) -> None:
        expire_due()

    @rule()
    def the_run_is_cancelled(self) -> None:
        run = AgentRun.objects.get(pk=self.run.pk)
        if not (run.is_terminal or run.ending):
            self.ledger.cancel(run)

    # --- what must hold ---------------------------------------------------------------------------------------------
    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "order"):
            return
        assert len(self.books.effects) <= 1, self.books.effects
        alive = 0
        for made in self.ledger.operations(self.order):
            mine = self.books.of(made.public_id)
            if made.status == S.SUCCEEDED:
                assert [each["id"] for each in mine] == [made.provider_ref]
            elif made.status in FINAL or made.status in (S.PENDING, S.APPROVED):
                assert not mine, f"{made.status} {made.error_code} with {mine}"
            assert (made.sealed_receipt is not None) == (made.status == S.SUCCEEDED)
            alive += made.status not in FINAL
            assert_told(made)
            run = made.run
            assert not (run.is_terminal and made.status not in FINAL)
        assert alive <= 1

    def teardown(self) -> None:
        """Whatever happened, machines bring it to its end or to a person."""
        if not hasattr(self, "order"):
            return
        self.books.arrive()
        self.books.settle()
        self.books.next_answer = "applied"
        made = self.ledger.settle(self.made())
        assert made.status in FINAL or made.status in (S.ESCALATED, S.PENDING)
        self.the_books_agree()


@pytest.fixture
def model(ledger, monkeypatch):
    ledger.reviewer = factories.person(ledger.tenant)
    monkeypatch.setattr(type(STRIPE), "abilities", STRIPE.abilities)
    monkeypatch.setattr(STRIPE, "check", lambda call: Machine.books.check(call))
    monkeypatch.setattr(STRIPE, "send", lambda *args: Machine.books.send(*args))
    monkeypatch.setattr(STRIPE, "look_up", lambda call: Machine.books.look_up(call))
    Machine.ledger = ledger
    return Machine


def test_whatever_happens_in_whatever_order(model):
    play(
        model,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
