"""A rerun begins with an empty journal, and nothing is done twice: first the list of what it would meet, then its digest."""

import pytest

from agentops.audit.entries import Actor
from agentops.audit.models import AuditEntry
from agentops.engine.control import cancel_run
from agentops.engine.outlook import Fate, outlook
from agentops.engine.replay import replay
from agentops.engine.rerun import Moved, rerun
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey
from operations.models import Operation
from runs.models import AgentRun
from tests.stage import LARGE, SMALL, answer, operation, story, types

EMIL = Actor("user:0", "cli")
HOW = {"actor": EMIL, "reason": "The answer was odd."}


def listed(run: AgentRun) -> list[tuple[str, str, str]]:
    return [(each.met.action, each.fate.value, each.code) for each in outlook(row_of(run)).prospects]


def row_of(run: AgentRun) -> AgentRun:
    return AgentRun.objects.get(pk=run.pk)


def again(stage, run: AgentRun, text: str | None = None) -> AgentRun:
    digest = outlook(row_of(run)).digest
    return rerun(stage.tenant.id, run.id, digest=digest, text=text, **HOW).run


def test_a_rerun_of_what_was_done_sends_nothing_and_names_the_same_refund(stage):
    order = stage.order()
    run = stage.carry_on(
        stage.ask_refund(order, dedupe_key="ticket-9", budget_cents=7, metadata={"desk": "1"})
    )
    before, mails = stage.provider.books()["calls"], stage.mails()
    assert listed(run) == [("refund.create", "reused", "done"), ("mail.send", "reused", "done")]
    shown = outlook(row_of(run))
    assert operation(run).provider_ref in shown.prospects[0].sentence
    new = rerun(stage.tenant.id, run.id, digest=shown.digest, **HOW).run
    assert (new.rerun_of_id, new.retry_of_id, new.actor, new.dedupe_key) == (
        run.pk,
        None,
        run.actor,
        "ticket-9",
    )
    assert (new.principal, new.budget_microusd, new.metadata) == ("user:0", 70_000, {"desk": "1"})
    assert new.trace_id != run.trace_id
    new = stage.carry_on(new)
    assert stage.refunds(order)[0]["id"] in answer(new)
    assert (len(stage.refunds(order)), stage.provider.books()["calls"], stage.mails()) == (1, before, mails)
    assert set(run.steps.values_list("key")) == set(new.steps.values_list("key")), (
        "it walked the whole way itself"
    )
    assert Operation.objects.count() == 2
    assert story(new)[0][1]["rerun_of"] == run.public_id
    assert AuditEntry.objects.get(verb="run.rerun").object_id == run.public_id
    with pytest.raises(Moved) as late:  # the same list starts one
        rerun(stage.tenant.id, run.id, digest=shown.digest, **HOW)
    assert late.value.outlook.digest != shown.digest
    assert run.reruns.count() == 1


def test_what_a_person_rejected_is_blocked_until_its_cool_down_is_over_and_then_asked_anew(stage):
    order, reviewer = stage.order(LARGE), stage.reviewer()
    run = stage.ask_refund(order)
    stage.decide(stage.until_asked(run), reviewer, "reject", reason="Not damaged at all.")
    run = stage.carry_on(run)
    first = operation(run)
    assert listed(run) == [("refund.create", "blocked", "cool_down")]
    told = stage.carry_on(again(stage, run))
    assert "Not damaged at all." in answer(told)
    assert "approval.requested" not in types(told)
    stale = outlook(row_of(run))
    stage.move_clock(90 * 24 * 3600)
    with pytest.raises(Moved):
        rerun(stage.tenant.id, run.id, digest=stale.digest, **HOW)
    assert listed(run) == [("refund.create", "proposed_again", "rejected_before")]
    person = stage.reviewer()
    by_person = {"actor": Actor(f"user:{person.pk}", "admin"), "reason": "x"}
    asking = rerun(stage.tenant.id, run.id, digest=outlook(row_of(run)).digest, **by_person).run
    approval = stage.until_asked(asking)
    assert approval.operation.previous_id == first.pk
    assert {f"user:{person.pk}", run.principal} <= set(approval.requesters), (
        "who runs it again has asked for it"
    )
    assert [code for *_, code in listed(run)] == ["asked"], "the newest occurrence is what a rerun meets"
    stage.decide(approval, reviewer)
    stage.carry_on(asking)
    assert listed(told) == [("refund.create", "reused", "done")]
    assert len(stage.refunds(order)) == 1


def test_a_list_that_moves_between_the_look_and_the_lock_starts_nothing(stage, monkeypatch):
    """The proposal of another run, which this one had joined, is withdrawn just when the list has been compared."""
    order = stage.order(LARGE)
    owner = stage.until_asked(stage.ask_refund(order)).operation.run
    run = stage.until_asked(stage.ask_refund(order)).operation.interests.exclude(run=owner).get().run
    stage.rest()
    with pytest.raises(Conflict) as living:
        again(stage, run)
    assert living.value.code == "not_ended"
    cancel_run(stage.tenant.id, run.id, actor=EMIL, reason="x")
    assert listed(run) == [("refund.create", "reused", "asked")]
    digest = outlook(row_of(run)).digest

    def looks_and_is_overtaken(source):
        seen = outlook(source)
        if not row_of(owner).ending:
            cancel_run(stage.tenant.id, owner.id, actor=EMIL, reason="x")
        return seen

    monkeypatch.setattr("agentops.engine.rerun.outlook", looks_and_is_overtaken)
    with pytest.raises(Moved) as late:
        rerun(stage.tenant.id, run.id, digest=digest, **HOW)
    assert [each.code for each in late.value.outlook.of(Fate.ANEW)] == ["cancelled"]
    assert not run.reruns.exists()


def test_a_fork_asks_something_else_and_inherits_nothing(stage):
    order, other = stage.order(), stage.order(SMALL)
    run = stage.carry_on(stage.ask_refund(order, dedupe_key="ticket-9"))
    fork = stage.carry_on(again(stage, run, f"My order {other['id']} arrived damaged, please refund it."))
    assert (fork.dedupe_key, fork.rerun_of_id) == (None, run.pk)
    assert (len(stage.refunds(order)), len(stage.refunds(other))) == (1, 1)
    assert AuditEntry.objects.filter(verb="run.forked").count() == 1
    DataKey.objects.filter(pk=run.data_key_id).update(
        wrapped=None, erased_at=Now()
    )  # on the customer's request
    vault.forget()
    for attempt in (lambda: again(stage, run), lambda: replay(row_of(run))):
        with pytest.raises(Conflict) as erased:
            attempt()
        assert erased.value.code == "erased"
