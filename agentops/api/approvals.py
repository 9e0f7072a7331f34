"""Approvals over REST: a run's questions to people, and a person's answer."""

from typing import Annotated

from django.http import HttpRequest
from ninja import Router
from pydantic import Field

from agentops.kernel.ids import parse
from agentops.kernel.problems import BadRequest, NotFound, NotYours
from agentops.tenancy.models import User
from agentops.tenancy.principals import Principal
from approvals.seen import Seen
from approvals.services import decide

from . import mapping, shapes
from .door import BearerToken, caller
from .runs import find_run

router = Router(tags=["Approvals"])


@router.get(
    "/runs/{run_id}/approvals",
    auth=BearerToken("approvals:read"),
    response=shapes.Approvals,
    exclude_unset=True,
    operation_id="listRunApprovals",
    summary="List a run's approvals",
)
def of_run(
    request: HttpRequest, run_id: str, limit: Annotated[int, Field(ge=1, le=200)] = 50, cursor: str = ""
) -> shapes.Approvals:
    """Open and closed ones, oldest first."""
    rows = mapping.approvals_of(find_run(caller(request), run_id))
    if cursor:
        after = parse("apr", cursor)
        if after is None:
            raise BadRequest(
                "This cursor is none of ours. Send the `next_cursor` of a page.", code="bad_cursor"
            )
        rows = rows.filter(id__gt=after)
    page = list(rows[: limit + 1])
    items = [mapping.approval(row) for row in page[:limit]]
    return shapes.Approvals(items=items, next_cursor=items[-1].approval_id if len(page) > limit else None)


@router.post(
    "/runs/{run_id}/approvals/approve",
    auth=BearerToken("approvals:decide"),
    response=shapes.Approval,
    exclude_unset=True,
    operation_id="approve",
    summary="Approve a proposal",
)
def approve(request: HttpRequest, run_id: str, asked: shapes.Approve) -> shapes.Approval:
    """Needs a token bound to a person, and decides with that person's rights and limits. `proposal_digest` says which
    proposal was read: any other answers 409, and nothing is decided.
    """
    return _decided(caller(request), run_id, asked, "approve")


@router.post(
    "/runs/{run_id}/approvals/reject",
    auth=BearerToken("approvals:decide"),
    response=shapes.Approval,
    exclude_unset=True,
    operation_id="reject",
    summary="Reject a proposal",
)
def reject(request: HttpRequest, run_id: str, asked: shapes.Reject) -> shapes.Approval:
    """Needs a token bound to a person; no limit applies to a no. The agent receives the reason."""
    return _decided(caller(request), run_id, asked, "reject")


def _decided(
    principal: Principal, run_id: str, asked: shapes.Approve | shapes.Reject, verdict: str
) -> shapes.Approval:
    reviewer = _person(principal)
    run = find_run(principal, run_id)
    approval = mapping.named(mapping.approvals_of(run), "apr", asked.approval_id)
    if approval is None:
        raise NotFound(f"{run} has no approval {asked.approval_id}. GET /v1/runs/{run}/approvals lists them.")
    decide(
        run.tenant_id,
        approval.id,
        reviewer=reviewer,
        verdict=verdict,
        reason=asked.reason,
        proposal_digest=asked.proposal_digest,
        channel=principal.channel,
        seen=Seen(mapping.approval(approval).proposal.model_dump(mode="json", exclude_unset=True)),
    )
    return mapping.approval(mapping.approvals_of(run).get(pk=approval.id))


def _person(principal: Principal) -> User:
    if principal.person is None:
        raise NotYours(
            "Only people decide, and this token is bound to none. Use a token that is issued for a person.",
            code="token_not_bound",
        )
    return principal.person
