"""Write to people about what waits: when it is asked, before its time is over, and to the next group. Never a decision by link.

Beat rings for it; no request makes or sends a mail. A notice is a row first: made once, claimed by its lease, sent once.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.urls import reverse

from agentops.audit.entries import SYSTEM, record
from agentops.kernel.clock import Now, Once, now
from agentops.kernel.ids import uuid7
from agentops.telemetry.logs import logger
from agentops.tenancy.models import User
from operations.sentences import money

from . import queries
from .models import Approval, Notice
from .rights import why_not
from .sentences import risk_label
from .states import ApprovalStatus, NoticeKind

log = logger(__name__)

LEASE_SECONDS = 60
AGAIN_SECONDS = 30
MAX_TRIES = 8
# When each kind is due, as a part of the time that the proposal may be decided.
DUE = {NoticeKind.ASKED: 0.0, NoticeKind.REMINDER: 0.5, NoticeKind.ESCALATED: 0.75}


def make_due(limit: int = 50) -> int:
    """Make the notices that are due now, for whoever may decide now; returns how many proposals were looked at."""
    due = Approval.objects.filter(queries.IS_OPEN, notify_at__lte=Once()).order_by("notify_at")
    ids = list(due.values_list("id", flat=True)[:limit])
    for approval_id in ids:
        _make(approval_id)
    return len(ids)


@transaction.atomic
def _make(approval_id: UUID) -> None:
    rows = Approval.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
    approval = rows.select_related("tenant").filter(pk=approval_id, status=ApprovalStatus.REQUESTED).first()
    if approval is None:
        return
    kind = _next_kind(approval.notified)
    if kind is None or _due_at(approval, kind) > now():
        _schedule(approval, kind)
        return
    if kind == NoticeKind.ESCALATED and approval.group and approval.escalate_to:
        approval.escalated_at = now()
        record(
            approval.tenant_id,
            "approval.escalated",
            "approval",
            approval.public_id,
            SYSTEM,
            detail={"to": approval.escalate_to},
        )
    Notice.objects.bulk_create(
        (
            Notice(id=uuid7(), tenant_id=approval.tenant_id, approval=approval, person=person, kind=kind)
            for person in _people(approval, kind)
            if person.email
        ),
        ignore_conflicts=True,
    )
    _schedule(approval, _next_kind(kind), notified=kind, escalated_at=approval.escalated_at)


def _next_kind(notified: str) -> NoticeKind | None:
    kinds = list(NoticeKind)
    place = kinds.index(NoticeKind(notified)) + 1 if notified else 0
    return kinds[place] if place < len(kinds) else None


def _due_at(approval: Approval, kind: NoticeKind) -> datetime:
    asked = approval.requested_at
    ends = approval.expires_at or asked + timedelta(hours=settings.AGENTOPS_APPROVAL_HOURS)
    return asked + (ends - asked) * DUE[kind]


def _schedule(approval: Approval, kind: NoticeKind | None, **changes: Any) -> None:
    at = None if kind is None else _due_at(approval, kind)
    Approval.objects.filter(pk=approval.pk).update(notify_at=at, **changes)


def _people(approval: Approval, kind: NoticeKind) -> Sequence[User]:
    """Those of the first group that can approve it; once it is escalated, those of the next one."""
    if approval.group:
        group = approval.escalate_to if kind == NoticeKind.ESCALATED else approval.group
        return queries.who_can_approve(approval, group=group) if group else []
    steps = [
        found
        for group in settings.AGENTOPS_ESCALATION
        if (found := queries.who_can_approve(approval, group=group))
    ]
    if kind == NoticeKind.ESCALATED:
        return steps[1] if len(steps) > 1 else []
    return steps[0] if steps else queries.who_can_approve(approval)


def send_due(limit: int = 20) -> int:
    """Send what is due, one after the other; returns how many mails left."""
    sent = 0
    for _ in range(limit):
        notice = _claim()
        if notice is None:
            break
        sent += _send(notice)
    return sent


@transaction.atomic
def _claim() -> Notice | None:
    """The next notice, under a lease: whoever else looks takes another one."""
    due = Notice.objects.filter(closed_at=None, due_at__lte=Now()).order_by("due_at", "id")
    notice = due.select_for_update(no_key=True, skip_locked=True).first()
    if notice is not None:
        notice.due_at, notice.tries = now() + timedelta(seconds=LEASE_SECONDS), notice.tries + 1
        notice.save(update_fields=["due_at", "tries"])
    return notice


def _send(notice: Notice) -> bool:
    approval = Approval.objects.select_related("tenant").get(pk=notice.approval_id)
    person = User.objects.get(pk=notice.person_id)
    waits = queries.waiting([approval.tenant_id]).filter(pk=approval.pk).exists()
    if not waits or not person.email or why_not(person, approval):
        _close(notice, "needless")
        return False
    try:
        _mail(notice, approval, person).send()
    except Exception as error:  # an address may be none, in more ways than a library foresees
        log.warning("notice_not_sent", notice=str(notice.id), tries=notice.tries, error=type(error).__name__)
        if notice.tries >= MAX_TRIES:
            _close(notice, "gave_up")
        else:
            again = now() + timedelta(seconds=AGAIN_SECONDS * 2**notice.tries)
            Notice.objects.filter(pk=notice.pk).update(due_at=again)
        return False
    _close(notice, "sent")
    return True


def _close(notice: Notice, outcome: str) -> None:
    Notice.objects.filter(pk=notice.pk, closed_at=None).update(closed_at=Now(), outcome=outcome)


def _mail(notice: Notice, approval: Approval, person: User) -> EmailMessage:
    """What, how much, how long, and where to look. Nobody's words, no target, no parameter, and nothing that decides."""
    what = approval.action
    if approval.amount_minor is not None:
        what = f"{what}, {money(approval.amount_minor, approval.currency)}"
    heads = {
        NoticeKind.ASKED: "Waits for a decision",
        NoticeKind.REMINDER: "Still waits for a decision",
        NoticeKind.ESCALATED: "Nobody has decided yet",
    }
    head = heads[NoticeKind(notice.kind)]
    until = f"{approval.expires_at:%-d %B, %H:%M} UTC" if approval.expires_at else "without an end"
    place = reverse("admin:approvals_review", args=[approval.public_id])
    lines = [
        f"{head}: {what}.",
        "",
        f"Tenant    {approval.tenant.name}",
        f"Risk      {risk_label(approval.risk)}",
        f"Until     {until}",
        "",
        "Read it and decide there, signed in:",
        f"{settings.AGENTOPS_BASE_URL}{place}",
        "",
        "This mail decides nothing, and neither does its link.",
    ]
    return EmailMessage(
        subject=f"{head}: {what}",
        body="\n".join(lines),
        from_email=settings.AGENTOPS_NOTICES_FROM,
        to=[person.email],
        headers={
            "Message-ID": f"<{notice.id}@agentops>",  # a copy, if there ever is one, is known as such
            "Auto-Submitted": "auto-generated",
        },
    )
