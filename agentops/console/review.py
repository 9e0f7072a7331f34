"""The approval review: read one proposal, decide it, go on to the next; one POST calls one service."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_http_methods

from agentops.kernel.ids import show
from agentops.kernel.problems import Conflict, Invalid, NotYours, Problem
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy.models import User
from approvals import queries, rights
from approvals.endings import ending_sentence
from approvals.models import Approval, Decision
from approvals.seen import Seen, digest_of
from approvals.sentences import money
from approvals.services import decide
from approvals.states import ApprovalStatus, Risk, VerdictOfPerson
from operations.models import Operation
from operations.sentences import action_title, status_label

from . import changing
from .access import Access, access_of, key_in
from .inbox import RankedApproval, queue, with_rights
from .moved import Moved, moved_since, told_moved
from .names import closed_by, decided_by
from .sheet import Sheet, sheet_of

QUEUE = 500  # how far "3 of 27" counts
HISTORY = 5
COMMENT_CHARS = 2_000
FORMS_KEPT = 20
CANNED = (
    ("Not enough evidence", "There is not enough evidence for it."),
    ("Outside our terms", "Our terms do not cover this case."),
    ("Ask the customer first", "Please ask the customer for more first."),
)


@dataclass
class Answer:
    """What the reader has typed and pressed; kept on the page until it is recorded."""

    verdict: str = ""
    comment: str = ""
    canned: str = ""
    ticked: list[str] = field(default_factory=list)
    form_id: str = field(default_factory=lambda: uuid4().hex)
    proposal_digest: str = ""
    seen_digest: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Answer":
        posted = request.POST
        return cls(
            verdict=posted.get("verdict", ""),
            comment=posted.get("comment", "")[:COMMENT_CHARS],
            canned=posted.get("canned", ""),
            ticked=posted.getlist("ticked"),
            form_id=posted.get("form_id", "")[:64],
            proposal_digest=posted.get("proposal_digest", ""),
            seen_digest=posted.get("seen_digest", "")[:64],
        )

    @property
    def reason(self) -> str:
        """The words that go with the verdict: a canned reason is for a rejection only."""
        parts = [self.canned if self.verdict == VerdictOfPerson.REJECT else "", self.comment.strip()]
        return " ".join(part for part in parts if part)


@require_http_methods(["GET", "HEAD", "POST"])
def review(request: HttpRequest, approval_id: str) -> HttpResponse:
    access = access_of(request)
    approval = _find(access, approval_id)
    if request.method != "POST":
        return _page(request, access, approval, Answer())
    answer = Answer.of(request)
    if answer.form_id and answer.form_id in request.session.get("decided_forms", []):
        messages.info(request, "Your decision is recorded; sending it again changed nothing.")
        return HttpResponseRedirect(request.path)
    if answer.verdict in changing.VERBS:
        return _changed(request, access, approval, answer)
    following = _following(access, approval)
    sheet = sheet_of(approval, approval.operation.run)
    seen = Seen(sheet.kept(_moved(approval)), returned=answer.seen_digest)
    try:
        if approval.risk == Risk.HIGH and answer.verdict == VerdictOfPerson.APPROVE:
            _careful(answer, sheet)
        decided = decide(
            approval.tenant_id,
            approval.id,
            reviewer=access.user,
            verdict=_verdict(answer),
            reason=answer.reason,
            proposal_digest=answer.proposal_digest,
            channel="admin",
            seen=seen,
        )
    except (NotYours, Invalid, Conflict) as problem:
        return _page(request, access, _find(access, approval_id), answer, problem)
    request.session["decided_forms"] = [
        *request.session.get("decided_forms", [])[1 - FORMS_KEPT :],
        answer.form_id,
    ]
    messages.success(request, _banner(sheet, decided, answer))
    return HttpResponseRedirect(_url(following) if following else reverse("admin:approvals"))


def _changed(request: HttpRequest, access: Access, approval: RankedApproval, answer: Answer) -> HttpResponse:
    try:
        after = changing.change(request, access, approval, answer.verdict)
    except (NotYours, Invalid, Conflict) as problem:
        return _page(request, access, _find(access, approval.public_id), answer, problem)
    return HttpResponseRedirect(_url(after.id))


def _find(access: Access, public_id: str) -> RankedApproval:
    """The approval with everything its page shows of it; another tenant's is as good as none."""
    key = key_in("apr", public_id)
    visible = Approval.objects.filter(tenant_id__in=access.within("view_approvals"), pk=key)
    approval = (
        with_rights(visible, access)
        .annotate(by=closed_by())
        .select_related("tenant", "operation", "operation__run", "data_key")
        .first()
    )
    if approval is None:
        raise Http404("There is no such proposal, or it is none of your tenants'.")
    return approval


def _verdict(answer: Answer) -> str:
    if answer.verdict not in VerdictOfPerson.values:
        raise Invalid("Press Approve or Reject.", code="no_verdict")
    return answer.verdict


def _careful(answer: Answer, sheet: Sheet) -> None:
    """A high risk is approved reason by reason, and with a comment."""
    if len(set(answer.ticked)) < len(sheet.reasons):
        raise Invalid("The risk is high: tick every reason that you have checked.", code="tick_every_reason")
    if not answer.comment.strip():
        raise Invalid("The risk is high: say in the comment what you checked.", code="comment_required")


def _following(access: Access, approval: Approval) -> UUID | None:
    """The next proposal that this reader may decide, after this one in the queue, else from its beginning."""
    ids: list[UUID] = list(queue(access).filter(may=True).values_list("id", flat=True)[:QUEUE])
    if approval.id in ids:
        place = ids.index(approval.id)
        ids = ids[place + 1 :] + ids[:place]
    return ids[0] if ids else None


def _url(approval_id: UUID) -> str:
    return reverse("admin:approvals_review", args=[show("apr", approval_id)])


def _banner(sheet: Sheet, decided: Approval, answer: Answer) -> str:
    operation_url = reverse("admin:operations_page", args=[show("op", decided.operation_id)])
    if decided.status == ApprovalStatus.REQUESTED:
        what = f"Your yes to “{sheet.title}” is recorded."
        more = f"{decided.required} people must agree, so it still waits."
    elif answer.verdict == VerdictOfPerson.APPROVE:
        what = f"Approved: {sheet.title}."
        more = f"It is sent in {decided.hold_seconds} s." if decided.hold_seconds else "It is being sent."
    else:
        what, more = f"Rejected: {sheet.title}.", "The agent has been told why."
    return format_html('{} {} <a href="{}">See the operation</a>', what, more, operation_url)


def _page(
    request: HttpRequest,
    access: Access,
    approval: RankedApproval,
    answer: Answer,
    problem: Problem | None = None,
) -> HttpResponse:
    sheet = sheet_of(approval, approval.operation.run)
    moved = _moved(approval)
    is_open = approval.status == ApprovalStatus.REQUESTED
    is_late = approval.expires_at is not None and approval.expires_at <= approval.clock
    has_expired = approval.status == ApprovalStatus.EXPIRED or (is_open and is_late)
    decisions = _decisions(approval) if not is_open or approval.required > 1 else []
    blocked = _blocked(access, approval) if is_open and not has_expired else ""
    if is_open and not sheet.opens:
        blocked = blocked or "unreadable"
    context = {
        **admin.site.each_context(request),
        "title": sheet.title,
        "approval": approval,
        "run": approval.operation.run,
        "sheet": sheet,
        "is_open": is_open and not has_expired,
        "has_expired": has_expired,
        "ending": _ending(approval, decisions),
        "told": _ending(approval, decisions, with_reason=True),
        "decisions": decisions,
        "given": sum(decision["verdict"] == VerdictOfPerson.APPROVE for decision in decisions),
        "blocked": blocked,
        "limit": _limit_text(approval),
        "able": queries.who_can_approve(approval) if blocked else [],
        "history": _history(approval),
        "offered": changing.offered(
            approval,
            may=_may_change(access, approval),
            is_open=is_open and not has_expired and sheet.opens,
        ),
        "told_moved": told_moved(approval),
        "moved": moved,
        "seen_digest": digest_of(sheet.kept(moved)),
        "answer": answer,
        "canned": CANNED,
        "problem": problem,
        "fault": _fault(problem),
        **_neighbours(access, approval),
    }
    status = problem.status if problem else 200
    if problem and problem.code == "already_decided":
        status = 200  # an old tab is no error: it is told calmly how it ended
    return TemplateResponse(request, "console/review.html", context, status=status)


def _moved(approval: RankedApproval) -> Moved | None:
    return moved_since(approval) if approval.was_asked else None


def _fault(problem: Problem | None) -> str:
    """The field that a refused answer is about: "comment", "reasons", or "" for the whole page."""
    code = problem.code if problem else ""
    if code in ("reason_required", "comment_required"):
        return "comment"
    return "reasons" if code == "tick_every_reason" else ""


def _neighbours(access: Access, approval: Approval) -> dict[str, Any]:
    ids: list[UUID] = list(queue(access).values_list("id", flat=True)[:QUEUE])
    place = ids.index(approval.id) if approval.id in ids else -1
    before = ids[place - 1] if place > 0 else None
    after = ids[place + 1] if place + 1 < len(ids) else None
    return {
        "place": place + 1,
        "waiting": len(ids),
        "previous_url": _url(before) if before else "",
        "next_url": _url(after) if after else "",
    }


def _blocked(access: Access, approval: RankedApproval) -> str:
    """Why this reader cannot approve: "" where they can."""
    if approval.tenant_id not in access.within("decide_approvals"):
        return "no_right"
    if f"user:{access.user.pk}" in approval.requesters:
        return "own_request"
    if approval.answered:
        return "already_answered"
    if not approval.in_group:
        return "other_group"
    if not approval.may:
        return "over_limit"
    return rights.why_not(access.user, approval) if approval.has_day else ""


def _may_change(access: Access, approval: RankedApproval) -> bool:
    """Lower, extend and take back need the right, and not to have asked; no limit."""
    return (
        approval.tenant_id in access.within("decide_approvals")
        and f"user:{access.user.pk}" not in approval.requesters
    )


def _limit_text(approval: RankedApproval) -> str:
    return "" if approval.limit_minor is None else money(approval.limit_minor, approval.currency)


def _decisions(approval: Approval) -> list[dict[str, Any]]:
    rows = Decision.objects.filter(approval=approval).select_related("reviewer").order_by("decided_at")
    return [
        {
            "by": _name(decision.reviewer),
            "verdict": decision.verdict,
            "reason": _reason(decision),
            "at": decision.decided_at,
        }
        for decision in rows
    ]


def _reason(decision: Decision) -> str:
    try:
        return queries.reason(decision)
    except CannotUnseal:
        return ""


def _ending(approval: Approval, decisions: Sequence[dict[str, Any]], *, with_reason: bool = False) -> str:
    last = decisions[-1] if decisions else {"reason": ""}
    by = str(getattr(approval, "by", None) or "")
    return ending_sentence(approval, by=by, reason=last["reason"] if with_reason else "")


def _name(person: User) -> str:
    return person.get_full_name() or person.username


def _history(approval: Approval) -> list[dict[str, Any]]:
    """The last operations on the same target, and who decided them."""
    others: QuerySet[Any] = (
        Operation.objects.filter(tenant_id=approval.tenant_id, target_id=approval.operation.target_id)
        .exclude(pk=approval.operation_id)
        .annotate(by=decided_by(approval__operation_id=OuterRef("pk")))
        .order_by("-created_at")
    )
    return [
        {
            "id": operation.public_id,
            "title": action_title(operation),
            "status": operation.status,
            "label": status_label(operation.status),
            "at": operation.created_at,
            "by": operation.by,
            "detail": operation.error_detail,
        }
        for operation in others[:HISTORY]
    ]
