"""Decide several proposals with one press: of one action and one risk class, exactly as shown, each answered for itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from agentops.kernel.ids import show
from agentops.kernel.problems import Invalid, Problem
from agentops.tenancy.models import User

from .deciding import decide
from .models import Approval
from .seen import Seen

MAX_AT_ONCE = 100


@dataclass(frozen=True)
class Named:
    """One proposal as it was shown."""

    approval_id: UUID
    proposal_digest: str
    seen: Seen | None = None


@dataclass(frozen=True)
class Answered:
    """What became of one: the approval's status, or the code and words of why nothing was decided."""

    approval_id: str
    status: str = ""
    code: str = ""
    detail: str = ""

    @property
    def is_decided(self) -> bool:
        return not self.code


def decide_each(
    tenant_id: int, named: Sequence[Named], *, reviewer: User, verdict: str, reason: str, channel: str
) -> list[Answered]:
    """One answer a proposal, in the order in which they were named; what goes wrong with one stops no other.

    Raises Invalid (too_many, mixed) before anything is decided. What is not of this tenant is not found, as alone.
    """
    if not 0 < len(named) <= MAX_AT_ONCE or len({one.approval_id for one in named}) < len(named):
        raise Invalid(f"Name 1 to {MAX_AT_ONCE} proposals, each once.", code="too_many")
    kinds = Approval.objects.filter(tenant_id=tenant_id, pk__in=[one.approval_id for one in named])
    if kinds.order_by().values("action", "risk").distinct().count() > 1:
        raise Invalid("Proposals are decided together within one action and one risk class.", code="mixed")
    return [_one(tenant_id, one, reviewer, verdict, reason, channel) for one in named]


def _one(tenant_id: int, one: Named, reviewer: User, verdict: str, reason: str, channel: str) -> Answered:
    public_id = show("apr", one.approval_id)
    try:
        approval = decide(
            tenant_id,
            one.approval_id,
            reviewer=reviewer,
            verdict=verdict,
            reason=reason,
            proposal_digest=one.proposal_digest,
            channel=channel,
            seen=one.seen,
        )
    except Problem as problem:
        return Answered(public_id, code=problem.code, detail=problem.detail)
    return Answered(public_id, approval.status)
