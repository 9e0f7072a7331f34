"""What a reviewer may do with a proposal beside deciding it: ask about less, give it more time, take a yes back."""

from decimal import Decimal, InvalidOperation
from typing import Any

from django.contrib import messages
from django.http import HttpRequest

from agentops.kernel.problems import Invalid
from approvals.endings import taken_back_sentence
from approvals.models import Approval
from approvals.services import extend, lower, revoke
from approvals.states import ApprovalStatus
from operations.connectors.registry import ACTIONS
from operations.models import Operation
from operations.sentences import decimals_of, money
from operations.states import OperationStatus

from .access import Access

VERBS = ("lower", "extend", "revoke")
REASON_CHARS = 2_000
AMOUNT_CHARS = 40


def offered(approval: Approval, *, may: bool, is_open: bool) -> dict[str, Any]:
    """Which of these the page offers: `lower` names the currency, `extend` by how long, `revoke` where nothing has left."""
    action = ACTIONS.get(approval.action)
    is_adjustable = action is not None and "amount_minor" in action.adjustable
    operation = approval.operation
    seconds = (approval.expires_at - approval.requested_at).total_seconds() if approval.expires_at else 0.0
    unsent = approval.status == ApprovalStatus.APPROVED and operation.status == OperationStatus.APPROVED
    return {
        "lower": approval.currency if may and is_open and is_adjustable and not operation.attempts else "",
        "extend": f"{seconds / 3600:.3g} h"
        if may and is_open and seconds and not approval.extended_at
        else "",
        "revoke": may and unsent and operation.authority_id == approval.id,
    }


def change(request: HttpRequest, access: Access, approval: Approval, verb: str) -> Approval:
    """Do it, and say so; the approval whose page comes next. Raises what the services raise."""
    posted: dict[str, str] = request.POST.dict()
    by: dict[str, Any] = {"reviewer": access.user, "channel": "admin"}
    reason = posted.get("why", "")[:REASON_CHARS]
    match verb:
        case "extend":
            longer = extend(approval.tenant_id, approval.id, **by)
            messages.success(request, f"It may be decided until {longer.expires_at:%-d %b, %H:%M} UTC.")
            return longer
        case "revoke":
            taken = revoke(approval.tenant_id, approval.id, reason=reason, **by)
            messages.success(request, taken_back_sentence(taken.operation.status))
            return _newest(approval)
    changes = {"amount_minor": _minor(posted.get("amount", ""), approval.currency)}
    digest = posted.get("proposal_digest", "")
    lower(approval.tenant_id, approval.id, changes=changes, reason=reason, proposal_digest=digest, **by)
    new = _newest(approval)
    if new.pk != approval.pk:
        amount = money(new.amount_minor or 0, new.currency)
        messages.success(request, f"Lowered to {amount}. This is the new proposal; it is not approved yet.")
    else:
        messages.warning(request, "A rule denies so little; the agent has been told.")
    return new


def _newest(approval: Approval) -> Approval:
    return Operation.objects.get(pk=approval.operation_id).approvals.order_by("-id")[:1].get()


def _minor(text: str, currency: str) -> int:
    """`49.50` in the currency's minor unit. Raises Invalid."""
    try:
        if len(text) > AMOUNT_CHARS:
            raise InvalidOperation
        value = Decimal(text.strip().replace(",", ".")) * 10 ** decimals_of(currency)
        if value != value.to_integral_value() or abs(value) >= 2**63:
            raise InvalidOperation
        return int(value)
    except (ArithmeticError, ValueError):
        raise Invalid(f"Say the new amount in {currency}, like 49.50.", code="not_lower") from None
