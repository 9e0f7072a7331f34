"""Rules that count: exactly, across runs, however many propose at once; and what rules lower stays one intent."""

from collections import Counter
from dataclasses import replace

import pytest

from agentops.audit.entries import Actor
from approvals import policy, queries, services
from approvals.models import Approval, PolicyDecision
from approvals.rules import history
from operations.connectors.registry import ACTIONS
from operations.models import Operation
from operations.moves import retried
from operations.services import digest_of, intend, propose
from runs.models import AgentRun
from runs.services import lock
from tests import factories, proposals
from tests.stage import LARGE, answer, operation, together

AGENT = Actor("agent:support-agent", "worker")
EUR = 'operation.currency == "EUR" && '


def rule(outcome="allow", when="true", **more):
    return {"code": more.pop("code", f"it.{outcome}"), "when": when, "outcome": outcome, **more}


def at_most(count: int, path: str = "customer.last_24h.count"):
    return [rule("deny", f"history.{path} >= {count}", code="it.too_many"), rule()]


def proposed(run, reference: str, amount_minor: int = 1_000, order: str = "A-1") -> Operation:
    """As the engine proposes: rules before the lock, counted again under it."""
    params = {
        "charge": "ch_1", "order": order, "line": "1", "amount_minor": amount_minor, "currency": "EUR", "reason": "other",
    }  # fmt: skip
    intended = intend(run, "refund.create", target=f"order:{order}", params=params, reference=reference)
    verdict = policy.evaluate(run, intended)

    @retried
    def record() -> Operation:
        made = propose(
            lock(run.tenant_id, run.id), f"turn-1/{reference}", intended, AGENT, may_ask_again=bool
        )
        services.submit(made.locked, verdict, intended.facts, AGENT)
        return made.operation

    return record()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["customer.last_24h.count", "tenant.today.count", "agent.last_hour.count"])
def test_of_many_that_propose_at_once_no_more_pass_than_the_rule_lets_through(path):
    """Each with a connection of its own, each on a target of its own: nothing but the counting lock is shared."""
    tenant = proposals.shop()
    factories.policy(tenant, "refund.create", at_most(3, path))
    runs = [factories.run(tenant, actor="customer:C-1") for _ in range(8)]
    made = together(*(lambda r=run, n=n: proposed(r, f"r-{n}", order=f"A-{n}") for n, run in enumerate(runs)))
    assert [each for each in made if isinstance(each, Exception)] == []
    assert Counter(Operation.objects.values_list("status", "error_code")) == {
        ("approved", ""): 3,
        ("rejected", "it.too_many"): 5,
    }
    assert all(decision.sealed_input for decision in PolicyDecision.objects.all())


@pytest.mark.django_db(transaction=True)
def test_a_sum_is_kept_by_splitting_neither_over_runs_nor_over_customers_of_one_target():
    tenant = proposals.shop()
    over = EUR + "history.target.last_30d.sum_minor + operation.amount_minor > 5000"
    factories.policy(tenant, "refund.create", [rule("deny", over, code="it.sum"), rule("require_approval")])
    runs = [factories.run(tenant, actor=f"customer:C-{n}") for n in range(6)]
    together(*(lambda r=run, n=n: proposed(r, f"r-{n}", 2_000) for n, run in enumerate(runs)))
    assert Counter(Operation.objects.values_list("status", flat=True)) == {"pending": 2, "rejected": 4}
    assert proposed(runs[0], "other", 2_000, order="A-2").status == "pending"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("guarded", [True, False])
def test_a_target_has_one_at_a_time_where_a_rule_says_so(monkeypatch, guarded):
    monkeypatch.setitem(ACTIONS, "refund.create", replace(ACTIONS["refund.create"], guards_target=guarded))
    tenant = proposals.shop()
    rules = [rule("deny", "history.same_target >= 1", code="it.second"), rule("require_approval", required=2)]
    factories.policy(tenant, "refund.create", rules)
    runs = [factories.run(tenant) for _ in range(5)]
    together(*(lambda r=run, n=n: proposed(r, f"r-{n}") for n, run in enumerate(runs)))
    assert Counter(Operation.objects.values_list("status", flat=True)) == {"pending": 1, "rejected": 4}


@pytest.mark.django_db(transaction=True)
def test_what_is_counted_is_what_stands_and_only_what_came_before(move_clock):
    tenant, other = proposals.shop(), proposals.shop()
    for each in (tenant, other):
        factories.policy(each, "refund.create", [rule("require_approval")])
    run = factories.run(tenant, actor="customer:C-1")
    foreign = proposed(factories.run(other, actor="customer:C-1"), "r")
    rows = [proposed(run, f"r-{n}", 100 * (n + 1), order=f"A-{n}") for n in range(4)]
    windows = {
        (scope, window) for scope in ("target", "customer") for window in ("last_hour", "last_24h", "today")
    }

    def seen(before=None, currency="EUR"):
        subject = history.Subject(
            tenant.id, "UTC", "refund.create", "order:A-3", "customer:C-1", run.agent, currency, before
        )
        found = history.count(subject, windows)
        return [
            found[f"history.{of}.{measure}"]
            for of in ("target.last_hour", "customer.last_24h")
            for measure in ("count", "sum_minor")
        ]

    assert seen() == [1, 400, 4, 1_000]
    assert seen(before=rows[2]) == [0, 0, 2, 300]
    assert seen(currency="USD") == [1, 0, 4, 0]
    decide(rows[0], "reject")
    assert seen() == [1, 400, 3, 900]  # what ended without effect counts no more
    move_clock(2 * 86_400)
    assert seen() == [1, 400, 3, 900]  # what is in flight counts however old it is
    assert foreign.tenant_id != tenant.id


def decide(row: Operation, verdict: str) -> None:
    approval = Approval.objects.get(operation=row, status="requested")
    services.decide(
        row.tenant_id, approval.id, reviewer=factories.person(row.tenant), verdict=verdict, reason="x",
        proposal_digest=approval.proposal_digest, channel="rest",
    )  # fmt: skip


def test_a_proposal_that_another_overtakes_is_looked_at_anew_and_lowered(stage, monkeypatch):
    """Between its rules and its lock the customer's first refund of the day is recorded: the second gets less."""
    second = "history.customer.last_24h.count >= 1"
    asks = rule(
        "require_approval", 'operation.target == "order:A-0"'
    )  # it stays open: nobody sends it meanwhile
    rules = [asks, rule("allow", second, code="it.second", clamp={"amount_minor": 1_000}), rule("allow")]
    factories.policy(stage.tenant, "refund.create", rules)
    consider, order, first = policy.consider, stage.order(2_000), factories.run(stage.tenant)
    AgentRun.objects.filter(pk=first.pk).update(ready_at=None)  # no driver takes it
    looks = []

    def overtaken(run, intended):
        found = consider(run, intended)
        looks.append(found[0].amount_minor or 0)
        if len(looks) == 1:
            proposed(first, "first", order="A-0")
        return found

    monkeypatch.setattr(policy, "consider", overtaken)
    run = stage.carry_on(stage.ask_refund(order))
    assert looks == [2_000, 1_000, 0]  # the last is the mail
    assert operation(run).amount_minor == 1_000
    assert [each["amount"] for each in stage.refunds(order)] == [1_000]
    assert "10.00 EUR" in answer(run)


def test_what_waits_keeps_its_place_however_many_come_after_it(stage):
    """A later look counts only what was counted at the first: nobody is asked again for what came later."""
    rules = [rule("deny", "history.tenant.today.count >= 1", code="it.second"), rule("require_approval")]
    factories.policy(stage.tenant, "refund.create", rules)
    order, later = stage.order(LARGE), stage.order(LARGE)
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    other = stage.carry_on(stage.ask_refund(later))
    assert operation(other).error_code == "it.second"
    stage.decide(approval, stage.reviewer())
    stage.carry_on(run)
    assert len(stage.refunds(order)) == 1
    assert stage.refunds(later) == []
    looks = PolicyDecision.objects.filter(operation=operation(run)).values_list("outcome", flat=True)
    assert list(looks) == ["require_approval", "require_approval"]


@pytest.mark.case("C-1")
def test_what_a_rule_lowers_is_shown_allowed_and_sent_lowered(stage):
    """Policy clamps 100 to 50; 100 is proposed."""
    factories.policy(
        stage.tenant,
        "refund.create",
        [
            rule("require_approval", EUR + "operation.amount_minor > 5000", code="it.lowers", clamp={"amount_minor": 5_000}),
            rule("allow", code="it.small"),
        ],
    )  # fmt: skip
    order = stage.order(12_000)
    run = stage.start(f"Refund 100 EUR of order {order['id']}, it is damaged.")
    approval = stage.until_asked(run)
    sheet = queries.proposal(approval)
    assert (sheet["amount_minor"], sheet["params"]["amount_minor"], approval.amount_minor) == (5_000,) * 3
    assert [field["after"] for field in sheet["fields"] if field["name"] == "refunded"] == [5_000]
    (warning,) = sheet["warnings"]
    assert (warning["code"], warning["from"], warning["to"], warning["by"]) == (
        "lowered",
        10_000,
        5_000,
        "it.lowers",
    )
    assert [reason["code"] for reason in sheet["reasons"]] == ["it.lowers"]  # not the rule that allows
    row = operation(run)
    assert approval.proposal_digest == digest_of(row)
    assert row.lowered == [{"field": "amount_minor", "from": 10_000, "to": 5_000, "by": "it.lowers"}]
    outcomes = PolicyDecision.objects.filter(operation=row).order_by("id").values_list("rule", "outcome")
    assert list(outcomes) == [("it.lowers", "require_approval"), ("it.lowers", "require_approval")]
    stage.decide(approval, stage.reviewer())
    stage.carry_on(run)
    assert [each["amount"] for each in stage.refunds(order)] == [5_000]

    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    again = stage.carry_on(stage.start(f"Refund 100 EUR of order {order['id']}, it is damaged."))
    assert operation(again) == row  # the same intent is the same operation, whatever rules made of it
    assert len(stage.refunds(order)) == 1
