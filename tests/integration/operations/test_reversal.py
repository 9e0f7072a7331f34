"""Compensation: what undoes a done operation is an operation of its own, linked to it, decided by others, done once."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agentops.audit.models import AuditEntry
from agentops.engine.reversal import reverse
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.sdk import agents
from agentops.sdk.errors import Terminal
from agentops.tenancy.models import Membership
from operations.models import Incident, Operation
from operations.sentences import status_sentence
from operations.services import intend
from tests import factories
from tests.stage import answer, operation, together


def cancelled(stage, order):
    run = stage.ask_cancel(order)
    stage.decide(stage.until_asked(run), stage.reviewer())
    return operation(stage.carry_on(run), "order.cancel")


def engineer(stage):
    return factories.person(stage.tenant, Membership.Role.ENGINEER)


def ask(done, person, reason="The wrong order was cancelled."):
    return reverse(done.tenant_id, done.id, person=person, reason=reason, channel="cli")


def test_what_was_done_is_undone_once_by_an_operation_of_its_own(stage):
    done, person = cancelled(stage, stage.order()), engineer(stage)
    run, again = ask(done, person), ask(done, person)
    assert run.pk == again.pk  # one at a time, however often it is asked for
    approval = stage.until_asked(run)
    assert f"user:{person.pk}" in approval.requesters
    stage.decide(approval, stage.reviewer())
    run = stage.carry_on(run)

    undoing = operation(run, "order.reopen")
    assert (run.status, undoing.status) == ("completed", "succeeded")
    assert undoing.reverses_id == done.pk
    assert undoing.public_id in answer(run)
    reopenings = [each for each in stage.provider.books()["reopenings"] if each["order"] == done.target_name]
    assert [each["operation_id"] for each in reopenings] == [undoing.public_id]

    done.refresh_from_db()
    assert done.status == "succeeded"
    assert done.reversed_at is not None
    assert "was undone" in status_sentence(done)
    verbs = AuditEntry.objects.filter(object_id=done.public_id).order_by("id").values_list("verb", flat=True)
    assert list(verbs)[-2:] == ["operation.undo_asked", "operation.reversed"]
    assert not Incident.objects.filter(
        kind="effect_reversed"
    ).exists()  # people asked for it: nobody must look
    with pytest.raises(Conflict, match="was undone"):
        ask(done, person)


def test_two_who_ask_in_different_names_get_one(stage):
    done = cancelled(stage, stage.order())
    stage.rest()
    first, second = together(lambda: ask(done, engineer(stage)), lambda: ask(done, engineer(stage)))
    runs = {each.pk: each for each in (first, second)}
    approval = stage.until_asked(next(iter(runs.values())))
    stage.decide(approval, stage.reviewer())
    for run in runs.values():
        stage.carry_on(run)
    assert Operation.objects.filter(reverses=done).count() == 1


def test_only_a_person_with_the_right_and_a_reason_may_ask(stage):
    done = cancelled(stage, stage.order())
    for person in (stage.reviewer(), factories.person(factories.tenant(), Membership.Role.ENGINEER)):
        with pytest.raises(NotYours):
            ask(done, person)
    with pytest.raises(Invalid, match="why"):
        ask(done, engineer(stage), reason="  ")
    with pytest.raises(NotFound):
        reverse(factories.tenant().id, done.id, person=engineer(stage), reason="x", channel="cli")
    assert not Operation.objects.filter(reverses=done).exists()


def test_what_nothing_undoes_or_what_was_never_done_is_told(stage):
    person = engineer(stage)
    refund = operation(stage.carry_on(stage.ask_refund(stage.order())))
    with pytest.raises(Conflict, match=r"Nothing undoes refund\.create"):
        ask(refund, person)
    asked = stage.ask_cancel(stage.order())
    stage.until_asked(asked)
    with pytest.raises(Conflict, match="nothing to undo"):
        ask(operation(asked, "order.cancel"), person)
    said = StringIO()
    done = cancelled(stage, stage.order())
    call_command(
        "operation", "reverse", done.public_id, "--as", person.username, "--reason", "Wrong.", stdout=said
    )
    assert "manage.py run follow run_" in said.getvalue()
    with pytest.raises(CommandError, match="Nothing undoes"):
        call_command("operation", "reverse", refund.public_id, "--as", person.username, "--reason", "Wrong.")


def test_an_agent_of_the_product_itself_is_started_by_nobody_by_name():
    assert agents.agent("direct") is not None
    assert agents.offered("direct") is None
    assert "direct" not in {each.name for each in agents.agents()}


def test_an_undoing_names_what_it_undoes(stage):
    order = stage.order()
    run = stage.start("x")
    for reference in ("op_nothing", "because", operation(stage.carry_on(stage.ask_refund(order))).public_id):
        with pytest.raises(Terminal, match="as its reference"):
            intend(
                run,
                "order.reopen",
                target=f"order:{order['id']}",
                params={"order": order["id"], "cancellation": "can_1"},
                reference=reference,
            )
