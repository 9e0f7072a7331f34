"""The states of an operation, and what an answer or a look-up can say about it."""

from collections.abc import Mapping

from django.db.models import TextChoices


class OperationStatus(TextChoices):
    PENDING = "pending"  # proposed; policy or people move it on
    APPROVED = "approved"  # may be sent, and nothing is on its way; dispatch moves it on
    EXECUTING = "executing"  # an attempt is committed, or the provider has accepted and not settled
    UNKNOWN = "unknown"  # an answer was lost; the reconciler looks it up
    ESCALATED = "escalated"  # the provider cannot tell; a person settles it
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_S = OperationStatus
FINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.REJECTED, _S.CANCELLED, _S.EXPIRED})
WITHOUT_EFFECT = FINAL - {_S.SUCCEEDED}
OPEN = frozenset(OperationStatus) - FINAL
UNSENT = frozenset({_S.PENDING, _S.APPROVED})
IN_DOUBT = frozenset({_S.EXECUTING, _S.UNKNOWN, _S.ESCALATED})
MOVES: Mapping[str, frozenset[str]] = {
    _S.PENDING: frozenset({_S.APPROVED, _S.REJECTED, _S.CANCELLED, _S.EXPIRED}),
    # To unknown only from "send again" by a person, where what is in doubt may not be sent after all.
    _S.APPROVED: frozenset({_S.EXECUTING, _S.PENDING, _S.REJECTED, _S.CANCELLED, _S.FAILED, _S.UNKNOWN}),
    _S.EXECUTING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.UNKNOWN, _S.APPROVED}),
    _S.UNKNOWN: frozenset({_S.SUCCEEDED, _S.FAILED, _S.EXECUTING, _S.APPROVED, _S.PENDING, _S.ESCALATED}),
    _S.ESCALATED: frozenset({_S.SUCCEEDED, _S.FAILED, _S.APPROVED, _S.PENDING, _S.UNKNOWN}),
    **{final: frozenset[str]() for final in FINAL},
}


class Verdict(TextChoices):
    """What one piece of evidence says."""

    APPLIED = "applied"  # done; there is a usable receipt
    ACCEPTED = "accepted"  # taken, not settled: a reference exists
    REFUSED = "refused"  # surely not applied, and never will be
    BLOCKED = "blocked"  # surely not applied: our credential or account is refused
    NOT_SENT = "not_sent"  # surely not applied: may be tried again, same generation
    BUSY = "busy"  # our key is in flight at the provider
    SPENT = "spent"  # the provider replays a stored error: this generation can say nothing else
    CONTRADICTION = (
        "contradiction"  # it answers for another amount, target or body, or without a usable receipt
    )
    UNKNOWN = "unknown"  # no answer that says anything
    ABSENT = "absent"  # looked up, and not there
    UNREACHABLE = "unreachable"  # looked up, and nobody answered
    REVERSED = "reversed"  # it was applied, and the provider has undone it since


class Source(TextChoices):
    """Where a piece of evidence comes from."""

    ANSWER = "answer"
    LOOK_UP = "look_up"
    WEBHOOK = "webhook"
    PERSON = "person"
    SWEEP = "sweep"


class PersonsVerdict(TextChoices):
    """What a person may say of an operation whose outcome is unknown."""

    HAPPENED = "happened"
    DID_NOT = "did-not"
    SEND_AGAIN = "send-again"
    KEEP_LOOKING = "keep-looking"


class Grade(TextChoices):
    """What happens after a lost answer; who must agree beforehand is policy's alone."""

    VERIFIABLE = "verifiable"  # at most once, and it can be looked up
    KEY_LIFETIME = "key_lifetime"  # at most once while its key lives: the same bytes bring the stored answer
    UNVERIFIABLE = "unverifiable"  # a lost answer goes to a person


class Outcome(TextChoices):
    """What the contract test found out about one ability that a connector declares."""

    PROVED = "proved"
    CONTRADICTED = "contradicted"  # the provider did otherwise
    NOT_PROVED = "not_proved"  # it could not be tried, or said nothing
    NOT_DECLARED = "not_declared"
