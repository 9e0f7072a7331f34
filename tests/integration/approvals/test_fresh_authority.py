"""FRESH-AUTHORITY over the real wire: what lapsed between a yes and the sending sends nothing. `test_moved` has every case."""

import pytest

from agentops.engine.settle import AUTHORITY
from agentops.tenancy.models import Tenant, User
from approvals.models import Approval
from operations.dispatch import dispatch
from operations.states import OperationStatus
from runs.models import AgentRun
from tests import factories
from tests.stage import LARGE, answer, operation, sql, story

ASK_TWO = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2}
DENY = {"code": "stop", "when": "true", "outcome": "deny", "sentences": {"en": "No refunds today."}}


@pytest.fixture
def order(stage):
    return stage.order(LARGE)


@pytest.fixture
def approved(stage, order):
    """A refund that a person allowed a moment ago; nobody is at work."""
    approval = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approval, factories.person(stage.tenant, name="rosa"))
    return Approval.objects.get(pk=approval.pk)


def sent_now(approval: Approval) -> str:
    """What one dispatch makes of the operation."""
    return dispatch(approval.operation_id, AUTHORITY, worker="test") and status_of(approval)


def status_of(approval: Approval) -> str:
    approval.operation.refresh_from_db()
    return str(approval.operation.status)


def withdraw_right(_stage, _order):
    User.objects.get(username="rosa").groups.clear()


def need_two(stage, _order):
    factories.policy(stage.tenant, "refund.create", [ASK_TWO])


def refund_elsewhere(stage, order):
    """A colleague gives some of it back in another screen."""
    import stripe

    client = stripe.StripeClient(
        "sk_test_agentops_demo", base_addresses={"api": stage.provider.payments_url}, max_network_retries=0
    )
    client.v1.refunds.create({"charge": order["charge"], "amount": 5_000}, {"idempotency_key": order["id"]})


def expire(stage, _order):
    stage.move_clock(24 * 3600 + 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (withdraw_right, "approver_lost_right"),
        (need_two, "policy_asks_more"),
        (refund_elsewhere, "guard_broken:refundable_minor"),
        (expire, "approval_expired"),
    ],
)
def test_what_lapsed_is_not_sent_but_asked_again(stage, order, approved, change, reason):
    change(stage, order)
    before = len(stage.refunds(order))
    assert sent_now(approved) == OperationStatus.PENDING
    assert len(stage.refunds(order)) == before
    approved.refresh_from_db()
    assert (approved.status, approved.consumed_at) == ("superseded", None)
    again = Approval.objects.get(operation=approved.operation, status="requested")
    assert again.proposal_digest == approved.proposal_digest
    moved = [data for type, data in story(approved.operation.run) if type == "operation.proposed"]
    assert [each["reason"] for each in moved] == ["", reason]
    run = stage.carry_on(
        AgentRun.objects.get(pk=approved.operation.run_id), lambda row: row.lease_owner is None
    )
    assert stage.until_asked(run) == again


def test_the_new_question_leads_to_one_refund(stage, order, approved):
    withdraw_right(stage, order)
    assert sent_now(approved) == OperationStatus.PENDING
    again = Approval.objects.get(operation=approved.operation, status="requested")
    stage.decide(again, stage.reviewer())
    run = stage.carry_on(approved.operation.run)
    assert run.status == "completed"
    assert len(stage.refunds(order)) == 1
    again.refresh_from_db()
    assert again.consumed_by == approved.operation_id


def test_what_a_rule_denies_by_now_is_refused_with_its_sentence(stage, order, approved):
    factories.policy(stage.tenant, "refund.create", [DENY])
    assert sent_now(approved) == OperationStatus.REJECTED
    run = stage.carry_on(approved.operation.run)
    assert "No refunds today" in answer(run)
    assert stage.refunds(order) == []


def test_a_milder_policy_changes_nothing(stage, order, approved):
    factories.policy(stage.tenant, "refund.create", factories.ALWAYS)
    assert sent_now(approved) == OperationStatus.SUCCEEDED
    assert len(stage.refunds(order)) == 1


def test_a_suspended_tenant_sends_nothing(stage, order, approved):
    Tenant.objects.update(state=Tenant.State.SUSPENDED)
    assert sent_now(approved) == OperationStatus.CANCELLED
    assert stage.refunds(order) == []
    assert operation(approved.operation.run).error_code == "tenant_suspended"


def test_a_tenant_that_is_suspended_while_its_run_is_at_work_sends_nothing_by_policy_either(
    stage, monkeypatch
):
    """The claim has been made: only the proposal itself can still notice."""
    from agentops.engine import settle

    order, read = stage.order(), settle.read_facts

    def suspended_meanwhile(intended):
        Tenant.objects.update(state=Tenant.State.SUSPENDED)
        return read(intended)

    monkeypatch.setattr(settle, "read_facts", suspended_meanwhile)
    run = stage.carry_on(stage.ask_refund(order))
    assert stage.refunds(order) == []
    assert not run.operations.exclude(status__in=["rejected", "cancelled"]).exists()


def test_nothing_is_sent_before_the_hold_is_over(stage, order, settings):
    settings.AGENTOPS_HOLD_SECONDS = 30
    run = stage.ask_refund(order)
    approval = stage.until_asked(run)
    stage.decide(approval, stage.reviewer())
    assert sent_now(approval) == OperationStatus.APPROVED
    assert stage.refunds(order) == []
    assert AgentRun.objects.get(pk=run.pk).blocked_on == ["operation"]
    stage.move_clock(31)
    assert sent_now(approval) == OperationStatus.SUCCEEDED
    assert len(stage.refunds(order)) == 1


def test_an_approval_that_ran_out_while_facts_were_read_does_not_send(stage, order, approved, monkeypatch):
    """The look before the lock still saw it alive; under the lock the clock is read again."""
    from operations.connectors.registry import CONNECTORS

    stripe, build = CONNECTORS["stripe"], CONNECTORS["stripe"].build

    def slowly(call):
        stage.move_clock(24 * 3600)
        return build(call)

    monkeypatch.setattr(stripe, "build", slowly)
    assert sent_now(approved) != OperationStatus.SUCCEEDED
    assert stage.refunds(order) == []
    monkeypatch.undo()
    assert sent_now(approved) == OperationStatus.PENDING


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE operations_operation SET authorised_digest = 'c1:proposal:0' WHERE id = %s",
        "UPDATE operations_operation SET amount_minor = 1 WHERE id = %s",
    ],
)
def test_a_record_that_was_altered_by_sql_is_not_sent(stage, order, approved, statement):
    from agentops.audit.models import AuditEntry

    sql(statement, approved.operation_id)
    assert sent_now(approved) == OperationStatus.FAILED
    assert stage.refunds(order) == []
    assert stage.refunds({"id": "A-1001"}) == []
    alarm = AuditEntry.objects.get(security=True)
    assert (alarm.verb, alarm.object_id) == ("operation.tampered", approved.operation.public_id)
    assert operation(approved.operation.run).error_code == "record_altered"


def test_params_of_another_operation_do_not_open_in_its_place(stage, order):
    other = stage.until_asked(stage.ask_refund(stage.order(LARGE + 1_000)))
    approved = stage.until_asked(stage.ask_refund(order))
    stage.rest()
    stage.decide(approved, stage.reviewer())
    sql(
        "UPDATE operations_operation SET sealed_params = (SELECT sealed_params FROM operations_operation WHERE id = %s)"
        " WHERE id = %s",
        other.operation_id,
        approved.operation_id,
    )
    assert sent_now(approved) == OperationStatus.FAILED
    assert stage.refunds(order) == []
