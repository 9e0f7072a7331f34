"""Proposals as an agent's run makes them, with facts that need no provider."""

import re
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.test import Client

from agentops.audit.entries import Actor
from agentops.tenancy.models import Tenant
from approvals import services
from approvals.models import Approval
from approvals.policy import evaluate
from operations import moves
from operations.connectors.base import Fact, Facts, Field, Guard
from operations.models import Operation
from operations.services import Intended, intend, propose
from runs.models import AgentRun
from runs.services import lock
from tests import factories

AGENT = Actor("agent:support-agent", "worker")


def shop(slug: str | None = None) -> Tenant:
    """A tenant that can propose refunds and cancellations."""
    tenant = factories.tenant(slug)
    factories.connection(tenant, "stripe", "http://127.0.0.1:9")
    factories.connection(tenant, "shop", "http://127.0.0.1:9")
    return tenant


def refund(
    run: AgentRun,
    *,
    order: str = "A-1002",
    amount_minor: int = 18_900,
    captured_minor: int | None = None,
    note: str = "",
    refund_to: str = "visa 4242",
    charge: str = "",
) -> Operation:
    """A proposed refund with what policy said: allowed, denied, or with an open approval."""
    charge, captured = charge or f"ch_{order.replace('-', '')}", captured_minor or amount_minor
    intended = intend(
        run,
        "refund.create",
        target=f"order:{order}",
        params={
            "charge": charge,
            "order": order,
            "line": f"{order}-1",
            "amount_minor": amount_minor,
            "currency": "EUR",
            "reason": "damaged",
            "note": note,
        },
        reference=f"{order}-1",
    )
    facts = _facts(order, amount_minor, captured, refund_to)
    return _submitted(run, intended, facts)


def _facts(order: str, amount_minor: int, refundable_minor: int, refund_to: str = "visa 4242") -> Facts:
    charge = f"ch_{order.replace('-', '')}"
    return Facts(
        facts=(
            Fact("order_charge", charge, "shop", Guard("==", charge)),
            Fact("order_status", "delivered", "shop"),
            Fact("refundable_minor", refundable_minor, "payments", Guard(">=", amount_minor)),
        ),
        fields=(
            Field("refunded", 0, amount_minor, "money"),
            Field("refund_to", None, refund_to),
            Field("order_status", "delivered", "delivered", "code"),
        ),
        capacity_minor=refundable_minor,
    )


def form_of(client: Client, approval: Approval) -> dict[str, str]:
    """The hidden fields of the decision's form, as a browser sends them back."""
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    names = ("proposal_digest", "seen_digest")
    return {name: value for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', page) if name in names}


def ask_again(approval: Approval, *, refundable_minor: int) -> None:
    """What dispatch does when it looks anew before sending and less of the charge is left than the yes rests on."""
    operation = Operation.objects.get(pk=approval.operation_id)
    assert operation.amount_minor is not None
    facts = _facts(operation.target_name, operation.amount_minor, refundable_minor)
    standing = services.AUTHORITY.recheck(operation, facts)
    assert standing.to is not None
    assert standing.then is not None
    with transaction.atomic():
        locked = moves.lock(operation.id)
        moves.move(locked, standing.to, reason=standing.code)
        standing.then(locked)


def cancellation(run: AgentRun, *, order: str = "A-1002") -> Operation:
    intended = intend(
        run,
        "order.cancel",
        target=f"order:{order}",
        params={"order": order, "reason": "not_wanted"},
        reference=order,
    )
    facts = Facts(
        facts=(Fact("is_cancelled", False, "shop", Guard("==", False)),),
        fields=(Field("order_status", "preparing", "cancelled", "code"),),
    )
    return _submitted(run, intended, facts)


def asked(run: AgentRun, **proposal: Any) -> Approval:
    """The open approval of a refund above the automatic limit."""
    return Approval.objects.get(operation=refund(run, **proposal))


def _submitted(run: AgentRun, intended: Intended, facts: Facts) -> Operation:
    intended = replace(intended, facts=facts)
    verdict = evaluate(run, intended)
    with transaction.atomic():
        again = services.may_ask_again(verdict, facts)
        step = f"turn-1/call-{run.operations.count()}"
        proposed = propose(lock(run.tenant_id, run.id), step, intended, AGENT, may_ask_again=again)
        services.submit(proposed.locked, verdict, facts, AGENT)
    return proposed.operation
