"""Whether an operation may be done: rules, the question to people, and each person's answer."""

import json
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from agentops.kernel.canonical import digest
from agentops.kernel.clock import Now
from agentops.kernel.ids import show, uuid7
from agentops.kernel.transitions import Stateful
from agentops.tenancy.models import DataKey, Tenant, User
from operations.models import Operation

from .states import MOVES, ApprovalStatus, NoticeKind, Outcome, Risk, VerdictOfPerson


def digest_of_rules(rules: Any) -> str:
    """Of the rules exactly as they stand: null is not missing here (`expires_hours`), as it is in the canonical form."""
    return digest("policy", json.dumps(rules, sort_keys=True))


class Policy(models.Model):
    """One version of a tenant's ordered rules for an action. A published version never changes.

    The one in force is the newest published that is not log-only. A log-only one decides nothing and records what it would
    have decided, while it is newer than the one in force.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="policies")
    action = models.CharField(max_length=60)
    number = models.PositiveIntegerField()
    rules = models.JSONField()  # each one a `rules.shape.Rule`
    digest = models.CharField(max_length=90)  # of the rules
    log_only = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=120, blank=True)
    published_at = models.DateTimeField(null=True)
    published_by = models.CharField(max_length=120, blank=True)

    class Meta:
        verbose_name_plural = "policies"
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="policy_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "action", "number"], name="policy_number_once"),
            models.UniqueConstraint(
                fields=["tenant", "action"], condition=Q(published_at__isnull=True), name="policy_one_draft"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} v{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.digest = digest_of_rules(self.rules)
        super().save(*args, **kwargs)


class PolicyDecision(models.Model):
    """What policy said about an operation, on which rule and which input."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    operation = models.ForeignKey(
        Operation,
        on_delete=models.PROTECT,
        db_constraint=False,
        db_index=False,
        related_name="policy_decisions",
    )
    policy = models.ForeignKey(
        Policy, on_delete=models.PROTECT, null=True, db_constraint=False, related_name="+"
    )
    rule = models.CharField(max_length=60)
    outcome = models.CharField(max_length=20, choices=Outcome)
    risk = models.CharField(max_length=12, choices=Risk)
    codes = ArrayField(models.CharField(max_length=60))
    input_digest = models.CharField(max_length=90)
    log_only = models.BooleanField(default=False)  # what a version that decides nothing would have said
    sealed_input = models.BinaryField(
        null=True
    )  # what the rules read, of a first look: a draft is tried on it
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="policydecision_tenant_id"),
        ]
        indexes: ClassVar[Any] = [models.Index(fields=["operation"], name="policydecision_of_operation")]


class Approval(Stateful):
    """A question to people about exactly one proposal, by its digest."""

    MOVES = MOVES

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="approvals")
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="approvals"
    )
    status = models.CharField(max_length=12, choices=ApprovalStatus, default=ApprovalStatus.REQUESTED)
    action = models.CharField(max_length=60)
    amount_minor = models.BigIntegerField(null=True)
    currency = models.CharField(max_length=3, blank=True)
    risk = models.CharField(max_length=12, choices=Risk)
    data_key = models.ForeignKey(
        DataKey, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    sealed_proposal = models.BinaryField()  # what reviewers see, as codes and values
    proposal_digest = models.CharField(max_length=90)
    sealed_grounds = models.BinaryField()  # facts with source, time and guard; policy; release; rights
    policy_decision = models.ForeignKey(
        PolicyDecision, on_delete=models.PROTECT, null=True, db_constraint=False, related_name="+"
    )
    requesters = ArrayField(models.CharField(max_length=120))  # the whole chain: person, token, agent
    group = models.CharField(
        max_length=40, blank=True
    )  # of the tenant, whose members decide; blank: everybody who may
    escalate_to = models.CharField(
        max_length=40, blank=True
    )  # whose members may decide too once it is escalated
    escalated_at = models.DateTimeField(null=True)
    required = models.PositiveSmallIntegerField(default=1)
    hold_seconds = models.PositiveIntegerField()
    expires_at = models.DateTimeField(null=True)
    requested_at = models.DateTimeField(db_default=Now())
    round = models.PositiveSmallIntegerField(
        default=0
    )  # how often what it rested on broke before it was asked
    extended_at = models.DateTimeField(null=True)  # once, by as long again
    extended_by = models.CharField(max_length=120, blank=True)
    notify_at = models.DateTimeField(null=True)  # when people are written to next; None: no more
    notified = models.CharField(max_length=12, choices=NoticeKind, blank=True)  # how far that has got
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=120, blank=True)
    closed_reason = models.CharField(max_length=60, blank=True)  # a code
    sealed_moved = models.BinaryField(null=True)  # what was otherwise when it was used, and broke nothing
    consumed_at = models.DateTimeField(null=True)
    consumed_by = models.UUIDField(null=True)  # the operation that spent it

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="approval_tenant_id"),
            models.UniqueConstraint(
                fields=["tenant", "operation"], condition=Q(status="requested"), name="approval_open_once"
            ),
            models.CheckConstraint(
                condition=Q(status__in=ApprovalStatus.values), name="approval_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status="requested") ^ Q(closed_at__isnull=False), name="approval_open_or_closed"
            ),
            models.CheckConstraint(
                condition=Q(consumed_at__isnull=True, consumed_by__isnull=True)
                | Q(consumed_at__isnull=False, consumed_by=F("operation_id"))
                & Q(status__in=["approved", "revoked", "superseded", "withdrawn"]),
                name="approval_consumed_once_by_its_operation",
            ),
            models.CheckConstraint(
                condition=Q(extended_at__isnull=True) ^ ~Q(extended_by=""), name="approval_extended_by_whom"
            ),
            models.CheckConstraint(condition=Q(required__gte=1), name="approval_required_positive"),
        ]
        indexes: ClassVar[Any] = [
            models.Index(
                fields=["tenant", "expires_at"], condition=Q(status="requested"), name="approval_waiting"
            ),
            models.Index(fields=["expires_at"], condition=Q(status="requested"), name="approval_expiring"),
            models.Index(fields=["tenant", "status", "-requested_at", "-id"], name="approval_newest"),
            models.Index(fields=["operation", "id"], name="approval_of_operation"),
            models.Index(fields=["requested_at"], condition=Q(status="requested"), name="approval_oldest"),
            models.Index(
                fields=["notify_at"],
                condition=Q(status="requested", notify_at__isnull=False),
                name="approval_to_tell_of",
            ),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return show("apr", self.id)


class Decision(models.Model):
    """One person's answer to an approval."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    approval = models.ForeignKey(
        Approval, on_delete=models.PROTECT, db_constraint=False, related_name="decisions"
    )
    reviewer = models.ForeignKey(User, on_delete=models.PROTECT, related_name="decisions")
    verdict = models.CharField(max_length=8, choices=VerdictOfPerson)
    sealed_reason = models.BinaryField()
    proposal_digest = models.CharField(max_length=90)
    sealed_sheet = models.BinaryField(null=True)  # what was rendered, where the door renders it
    seen_sheet_digest = models.CharField(max_length=64, blank=True)  # of that
    groups = ArrayField(
        models.CharField(max_length=40), default=list
    )  # of the tenant, that the reviewer was in
    limit_minor = models.BigIntegerField(
        null=True
    )  # up to which the reviewer might say yes; None: nothing to limit
    channel = models.CharField(max_length=16)
    decided_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "approval", "reviewer"], name="decision_once_a_person"),
            models.CheckConstraint(
                condition=Q(sealed_sheet__isnull=True) ^ ~Q(seen_sheet_digest=""),
                name="decision_sheet_with_its_digest",
            ),
        ]


class ReviewLimit(models.Model):
    """Up to which amount a person, or each member of a group, may approve an action; and a day (in the tenant's zone).

    A day's sum is a person's own, or that of all members together. The row is locked while its day is counted.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="review_limits")
    reviewer = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="review_limits")
    group = models.CharField(max_length=40, blank=True)  # of the tenant: "reviewer", "finance"
    action = models.CharField(max_length=60, blank=True)  # blank: every action
    currency = models.CharField(max_length=3)
    each_minor = models.BigIntegerField()
    day_minor = models.BigIntegerField(null=True)  # None: no daily limit

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(
                fields=["tenant", "reviewer", "action", "currency"],
                condition=Q(reviewer__isnull=False),
                name="reviewlimit_once",
            ),
            models.UniqueConstraint(
                fields=["tenant", "group", "action", "currency"],
                condition=~Q(group=""),
                name="reviewlimit_of_group_once",
            ),
            models.CheckConstraint(
                condition=Q(reviewer__isnull=True) ^ Q(group=""), name="reviewlimit_of_one_or_of_a_group"
            ),
        ]


class Notice(models.Model):
    """One mail to one person about one proposal: made once, claimed by whoever sends it, never sent by a request."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    approval = models.ForeignKey(
        Approval, on_delete=models.PROTECT, db_constraint=False, related_name="notices"
    )
    person = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=12, choices=NoticeKind)
    made_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now())  # the next try, or the end of the lease of this one
    tries = models.PositiveSmallIntegerField(default=0)
    closed_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=12, blank=True)  # sent, needless, gave_up

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "approval", "person", "kind"], name="notice_once"),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True) ^ ~Q(outcome=""), name="notice_closed_with_an_outcome"
            ),
        ]
        indexes: ClassVar[Any] = [
            models.Index(fields=["due_at"], condition=Q(closed_at__isnull=True), name="notice_due"),
        ]
