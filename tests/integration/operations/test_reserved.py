"""Money stays reserved: however many ask at once, what is promised and done never exceeds what was captured."""

from collections import Counter
from dataclasses import replace

import pytest

from agentops.audit.entries import Actor
from approvals import services as deciding
from approvals.models import Approval
from approvals.policy import evaluate
from approvals.services import AUTHORITY
from operations.connectors.registry import ACTIONS
from operations.dispatch import dispatch
from operations.models import Finding, Operation, Target
from operations.moves import retried
from operations.services import intend, propose, read_facts
from operations.targets import remaining_minor
from runs.services import lock
from tests import factories
from tests.stage import together

AGENT = Actor("agent:support-agent", "worker")
CAPTURED, EACH, ASKED = 5_000, 900, 20
HELD = CAPTURED // EACH


def proposed(run, order, reference: str) -> Operation:
    params = {
        "charge": order["charge"], "order": order["id"], "line": f"{order['id']}-1", "amount_minor": EACH,
        "currency": "EUR", "reason": "damaged",
    }  # fmt: skip
    intended = read_facts(
        intend(run, "refund.create", target=f"order:{order['id']}", params=params, reference=reference)
    )
    verdict = evaluate(run, intended)

    @retried
    def record() -> Operation:
        made = propose(lock(run.tenant_id, run.id), "turn-1/call-0", intended, AGENT, may_ask_again=bool)
        deciding.submit(made.locked, verdict, intended.facts, AGENT)
        return made.operation

    return record()


def propose_all(stage, order) -> list[Operation]:
    runs = [factories.run(stage.tenant, "Refund a part.") for _ in range(ASKED)]
    made = together(*(lambda r=run, n=n: proposed(r, order, f"return-{n}") for n, run in enumerate(runs)))
    assert [each for each in made if isinstance(each, Exception)] == []
    return made


def send_all(stage, order, made: list[Operation], sent: int) -> None:
    """Everybody sends at once, and again; the books hold what was captured at most, and the provider had to refuse nothing."""
    for _ in range(2):
        together(*(lambda o=each: dispatch(o.id, AUTHORITY, worker="test") for each in made))
        stage.move_clock(60)
    assert [each["amount"] for each in stage.refunds(order)] == [EACH] * sent
    assert not Finding.objects.filter(verdict="refused").exists()
    target = Target.objects.get(external_id=order["id"])
    assert remaining_minor(target, but=target.id) == CAPTURED - sent * EACH


@pytest.mark.parametrize("allowed", [1, HELD])
def test_of_twenty_partial_refunds_that_a_rule_allows_at_once_no_more_are_promised_than_was_captured(
    stage, monkeypatch, allowed
):
    """Where the action switches the guard on its target off; with it one is allowed, and people are asked about the others."""
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    guarded = replace(ACTIONS["refund.create"], guards_target=allowed == 1)
    monkeypatch.setitem(ACTIONS, "refund.create", guarded)
    order = stage.order(CAPTURED)
    made = propose_all(stage, order)
    ends = Counter(Operation.objects.values_list("status", "error_code"))
    assert ends[("approved", "")] == allowed
    assert set(ends) <= {("approved", ""), ("rejected", "over_remaining"), ("pending", "")}
    send_all(stage, order, made, sent=allowed)


def test_of_twenty_that_people_approve_at_once_no_more_are_promised_than_was_captured(stage):
    factories.policy(stage.tenant, "refund.create", factories.ASK)
    order, person = stage.order(CAPTURED), stage.reviewer()
    made = propose_all(stage, order)
    asked = list(Approval.objects.filter(status="requested"))
    assert len(asked) == ASKED
    outcomes = together(*(lambda a=each: stage.decide(a, person) for each in asked))
    refused = [each for each in outcomes if isinstance(each, Exception)]
    assert [getattr(each, "code", repr(each)) for each in refused] == ["over_remaining"] * (ASKED - HELD)
    assert Operation.objects.filter(status="approved").count() == HELD
    send_all(stage, order, made, sent=HELD)
