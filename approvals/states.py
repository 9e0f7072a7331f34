"""The states of an approval, and what policy can say."""

from collections.abc import Mapping

from django.db.models import TextChoices


class ApprovalStatus(TextChoices):
    REQUESTED = "requested"  # open; people, the clock, a cancel or a changed proposal close it
    APPROVED = "approved"  # enough people said yes; the hold, a revoke or dispatch come next
    REJECTED = "rejected"  # a person said no, with a reason
    EXPIRED = "expired"  # nobody decided in time
    REVOKED = "revoked"  # a yes was taken back before anything was sent
    WITHDRAWN = "withdrawn"  # the run ended, so nobody asks any more
    SUPERSEDED = "superseded"  # the proposal or its grounds changed; another approval asks


_S = ApprovalStatus
MOVES: Mapping[str, frozenset[str]] = {
    _S.REQUESTED: frozenset({_S.APPROVED, _S.REJECTED, _S.EXPIRED, _S.WITHDRAWN, _S.SUPERSEDED}),
    _S.APPROVED: frozenset({_S.REVOKED, _S.WITHDRAWN, _S.SUPERSEDED}),
    _S.REJECTED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.REVOKED: frozenset(),
    _S.WITHDRAWN: frozenset(),
    _S.SUPERSEDED: frozenset(),
}


class Outcome(TextChoices):
    """What policy says to a proposal, from mild to strict."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"


class Risk(TextChoices):
    ROUTINE = "routine"
    ELEVATED = "elevated"
    HIGH = "high"


class VerdictOfPerson(TextChoices):
    APPROVE = "approve"
    REJECT = "reject"


class NoticeKind(TextChoices):
    """What people are written to about, in that order."""

    ASKED = "asked"  # it waits
    REMINDER = "reminder"  # it still waits, and its time runs out
    ESCALATED = "escalated"  # it still waits, and the next group is told
