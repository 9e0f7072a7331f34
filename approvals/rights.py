"""Who may decide: a right in the tenant, not among those who asked, and for a yes a limit that is high enough."""

from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel.problems import NotYours
from agentops.tenancy.models import User

from . import queries
from .models import Approval
from .states import VerdictOfPerson


def entitled(approval: Approval, reviewer: User, answer: VerdictOfPerson) -> None:
    if not reviewer.is_active or not reviewer.has_perm("tenancy.decide_approvals", approval.tenant):
        raise NotYours(f"You may not decide proposals of {approval.tenant}.", code="no_right")
    if f"user:{reviewer.pk}" in approval.requesters:
        raise NotYours("You asked for this yourself, so somebody else decides.", code="own_request")
    if answer == VerdictOfPerson.APPROVE and not queries.within_limit(reviewer, approval):
        able = ", ".join(
            person.get_full_name() or person.username for person in queries.who_can_approve(approval)
        )
        raise NotYours(
            f"This is above your limit. {able or 'Nobody with a high enough limit'} can approve it.",
            code="over_limit",
        )


def note_refusal(approval: Approval, reviewer: User, channel: str, code: str) -> None:
    with transaction.atomic():
        record(
            approval.tenant_id,
            "approval.refused_reviewer",
            "approval",
            approval.public_id,
            Actor(f"user:{reviewer.pk}", channel),
            detail={"code": code},
            security=code == "no_right",
        )
