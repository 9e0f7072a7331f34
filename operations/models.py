"""What runs want done outside, every request on the wire, and the proof of what became of it."""

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from agentops.kernel.clock import Now
from agentops.kernel.ids import show, uuid7
from agentops.kernel.transitions import Stateful
from agentops.tenancy.models import DataKey, Tenant, User
from runs.models import AgentRun

from .states import (
    FINAL,
    MOVES,
    OPEN,
    WITHOUT_EFFECT,
    Grade,
    OperationStatus,
    PersonsVerdict,
    Source,
    Verdict,
)


class Connection(models.Model):
    """An account at a provider: whose, in which mode, with which credential, and how well it can be verified."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="connections")
    name = models.CharField(max_length=60)
    connector = models.CharField(max_length=40)
    mode = models.CharField(max_length=8, choices=[("test", "test"), ("live", "live")], default="test")
    base_url = models.CharField(max_length=200, blank=True)
    sealed_credential = models.BinaryField()
    sealed_hook_secret = models.BinaryField(null=True)  # None: this account announces nothing to us
    enabled = models.BooleanField(default=True)
    grade = models.CharField(max_length=40, choices=Grade, blank=True)
    graded_at = models.DateTimeField(null=True)
    graded_version = models.PositiveSmallIntegerField(
        null=True
    )  # of the connector: another one, and it expires
    proofs = models.JSONField(default=list)  # one object an ability, codes and values: see `contract.Proof`
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="connection_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "name"], name="connection_name_once"),
            models.CheckConstraint(
                condition=Q(grade="") ^ Q(grade__in=Grade.values, graded_version__isnull=False),
                name="connection_grade_of_a_version",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.connector}, {self.mode})"

    @property
    def public_id(self) -> str:
        return show("con", self.id)


class Target(models.Model):
    """The thing that operations change; its row is locked where money is promised."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, db_constraint=False, related_name="targets"
    )
    type = models.CharField(max_length=32)
    external_id = models.CharField(max_length=120)
    currency = models.CharField(max_length=3, blank=True)
    capacity_minor = models.BigIntegerField(null=True)  # what was captured
    foreign_minor = models.BigIntegerField(default=0)  # the provider's effects that are not ours
    as_of = models.DateTimeField(null=True)
    thing = models.CharField(max_length=120, blank=True)  # what the money comes from, by the provider's name

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="target_tenant_id"),
            models.UniqueConstraint(
                fields=["tenant", "connection", "type", "external_id"], name="target_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type}:{self.external_id}"


class Operation(Stateful):
    """One intended change in somebody else's system: one record, one key, one honest status."""

    MOVES = MOVES

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, db_index=False, related_name="operations")
    actor = models.CharField(max_length=120)
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="operations"
    )
    step = models.CharField(max_length=200)
    action = models.CharField(max_length=60)
    action_version = models.PositiveSmallIntegerField()
    target = models.ForeignKey(
        Target, on_delete=models.PROTECT, db_constraint=False, related_name="operations"
    )
    target_type = models.CharField(max_length=32)
    target_name = models.CharField(max_length=120)
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, db_constraint=False, related_name="operations"
    )
    data_key = models.ForeignKey(
        DataKey, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    sealed_params = models.BinaryField()
    params_digest = models.CharField(max_length=90)
    amount_minor = models.BigIntegerField(null=True)
    currency = models.CharField(max_length=3, blank=True)
    reference = models.CharField(max_length=120)
    lowered = models.JSONField(
        default=list
    )  # [{field, from, to, by}]: whole numbers that were proposed higher
    occurrence = models.PositiveSmallIntegerField(default=0)
    previous = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, related_name="next"
    )
    reverses = models.ForeignKey(  # what this one undoes
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, related_name="reversals"
    )
    operation_key = models.CharField(max_length=90)
    status = models.CharField(max_length=16, choices=OperationStatus, default=OperationStatus.PENDING)
    authority_kind = models.CharField(max_length=16, blank=True)  # policy, approval, adopted
    authority_id = models.UUIDField(null=True)
    authorised_digest = models.CharField(max_length=90, blank=True)  # of the proposal that was allowed
    generation = models.PositiveSmallIntegerField(default=0)
    idempotency_key = models.CharField(max_length=80)
    key_expires_at = models.DateTimeField(null=True)
    dispatch_after = models.DateTimeField(null=True)
    next_attempt_at = models.DateTimeField(null=True)  # next try, or next look-up
    quiet_at = models.DateTimeField(null=True)  # before it, "not found" means nothing
    attempts = models.PositiveIntegerField(default=0)
    findings_taken = models.PositiveIntegerField(default=0)
    in_doubt = models.BooleanField(
        default=False
    )  # an attempt may have had an effect, and nothing proves otherwise
    look_until = models.DateTimeField(null=True)  # a person wants it looked for until then
    accepted_at = models.DateTimeField(null=True)
    told_at = models.DateTimeField(null=True)  # the provider's own time of the newest message that was taken
    provider_ref = models.CharField(max_length=120, blank=True)
    sealed_receipt = models.BinaryField(null=True)
    reversed_at = models.DateTimeField(null=True)
    reopened_at = models.DateTimeField(null=True)  # a person lets the same intent be proposed once more
    reopened_by = models.CharField(max_length=120, blank=True)
    error_code = models.CharField(max_length=60, blank=True)
    error_detail = models.CharField(max_length=500, blank=True)  # masked
    lease_owner = models.CharField(max_length=64, null=True)
    lease_expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="operation_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "operation_key"], name="operation_key_once"),
            models.CheckConstraint(
                condition=Q(status__in=OperationStatus.values), name="operation_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status="succeeded") ^ Q(sealed_receipt__isnull=True),
                name="operation_receipt_iff_succeeded",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=["approved", "executing", "succeeded"]) | ~Q(authority_kind=""),
                name="operation_authority_before_effect",
            ),
            models.CheckConstraint(
                condition=~Q(authority_kind="adopted") | Q(attempts=0), name="operation_adopted_is_never_sent"
            ),
            models.CheckConstraint(
                condition=Q(amount_minor__isnull=True, currency="")
                | (Q(amount_minor__isnull=False) & ~Q(currency="")),
                name="operation_amount_with_currency",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=sorted(FINAL)) | Q(lease_owner__isnull=True),
                name="operation_ends_without_lease",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=["pending", *sorted(WITHOUT_EFFECT)]) | Q(in_doubt=False),
                name="operation_in_doubt_is_not_undone",
            ),
            models.UniqueConstraint(
                fields=["tenant", "reverses"],
                condition=Q(reverses__isnull=False) & ~Q(status__in=sorted(WITHOUT_EFFECT)),
                name="operation_reversed_once",
            ),
            models.CheckConstraint(
                condition=Q(reopened_at__isnull=True) | (Q(status__in=sorted(FINAL)) & ~Q(reopened_by="")),
                name="operation_reopened_by_whom_after_its_end",
            ),
        ]
        indexes: ClassVar[Any] = [
            # By name: a proposal looks for others on its target before its own row of the target exists.
            models.Index(
                fields=["tenant", "action", "target_name", "-created_at"], name="operation_of_target"
            ),
            models.Index(fields=["tenant", "action", "actor"], name="operation_of_actor"),
            models.Index(  # these two: what rules count
                fields=["tenant", "action"], condition=Q(status__in=sorted(OPEN)), name="operation_open"
            ),
            models.Index(
                fields=["tenant", "action", "-updated_at"],
                condition=Q(status="succeeded"),
                name="operation_done",
            ),
            models.Index(fields=["tenant", "-created_at", "-id"], name="operation_newest"),
            models.Index(fields=["tenant", "status", "-created_at", "-id"], name="operation_by_status"),
            models.Index(fields=["run"], name="operation_of_run"),
            models.Index(
                fields=["connection", "provider_ref", "id"],
                condition=~Q(provider_ref=""),
                name="operation_of_reference",
            ),
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(status__in=["approved", "executing", "unknown"]),
                name="operation_due",
            ),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return show("op", self.id)

    @property
    def target_text(self) -> str:
        return f"{self.target_type}:{self.target_name}"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


class Interest(models.Model):
    """A step of a run that stands for an operation: its own, or one that another run proposed before."""

    pk = models.CompositePrimaryKey("run_id", "step")
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="interests"
    )
    step = models.CharField(max_length=200)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, db_constraint=False, related_name="interests"
    )


class Attempt(models.Model):
    """One request on the wire, committed before its first byte leaves; what came of it is a Finding."""

    pk = models.CompositePrimaryKey("operation_id", "number")
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="tries"
    )
    number = models.PositiveIntegerField()
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    generation = models.PositiveSmallIntegerField()
    idempotency_key = models.CharField(max_length=80)
    request_digest = models.CharField(max_length=64)
    sealed_request = models.BinaryField()  # the exact bytes that this generation sends
    api_version = models.CharField(max_length=40, blank=True)
    worker = models.CharField(max_length=64)
    started_at = models.DateTimeField(db_default=Now())
    send_by = models.DateTimeField()
    quiet_at = models.DateTimeField()


class Finding(models.Model):
    """One piece of evidence about an operation, whoever brought it."""

    pk = models.CompositePrimaryKey("operation_id", "number")
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="findings"
    )
    number = models.PositiveIntegerField()
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    source = models.CharField(max_length=16, choices=Source)
    verdict = models.CharField(max_length=16, choices=Verdict)
    attempt = models.PositiveIntegerField(null=True)
    provider_ref = models.CharField(max_length=120, blank=True)
    code = models.CharField(max_length=60, blank=True)
    sealed_evidence = models.BinaryField()
    actor = models.CharField(max_length=120)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.CheckConstraint(condition=Q(verdict__in=Verdict.values), name="finding_verdict_known"),
            models.CheckConstraint(condition=Q(source__in=Source.values), name="finding_source_known"),
            models.UniqueConstraint(
                fields=["tenant", "operation", "attempt"],
                condition=Q(source="answer"),
                name="finding_answer_once",
            ),
        ]


class Hook(models.Model):
    """One signed message of a provider, stored before anything is made of it; a second one with its id is no news."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, db_constraint=False, related_name="hooks"
    )
    event_id = models.CharField(max_length=120)  # the provider's name for it, under its signature
    type = models.CharField(max_length=60)
    told_at = models.DateTimeField()  # by the provider's clock
    sealed_body = models.BinaryField()
    received_at = models.DateTimeField(db_default=Now())
    taken_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, blank=True)  # taken, older, unmatched, ignored, unreadable

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="hook_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "connection", "event_id"], name="hook_once"),
        ]
        indexes: ClassVar[Any] = [
            models.Index(fields=["received_at"], condition=Q(taken_at__isnull=True), name="hook_untaken"),
        ]


class Unmatched(models.Model):
    """Evidence of an effect whose operation is not here: kept until somebody finds out whose it is."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, db_constraint=False, related_name="unmatched"
    )
    source = models.CharField(max_length=16, choices=Source)
    provider_ref = models.CharField(max_length=120)
    claims = models.CharField(max_length=60, blank=True)  # the operation that it names, "op_…"; "" for none
    amount_minor = models.BigIntegerField(null=True)
    currency = models.CharField(max_length=3, blank=True)
    sealed_evidence = models.BinaryField()  # {"detail", "receipt": what the provider says of it}
    first_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)
    closed_as = models.CharField(max_length=16, blank=True)  # foreign, adopted, matched
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, null=True, db_constraint=False, related_name="+"
    )

    class Meta:
        verbose_name_plural = "unmatched"
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="unmatched_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "connection", "provider_ref"], name="unmatched_once"),
            models.CheckConstraint(condition=Q(source__in=Source.values), name="unmatched_source_known"),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True) ^ ~Q(closed_as=""), name="unmatched_open_or_closed"
            ),
        ]


class Sweep(models.Model):
    """One window of a provider's effects that is gone through, page by page, and what was found in it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, db_constraint=False, related_name="sweeps"
    )
    since = models.DateTimeField()
    until = models.DateTimeField()
    cursor = models.CharField(max_length=200, blank=True)  # where the next page begins
    listed = models.PositiveIntegerField(default=0)
    ours = models.PositiveIntegerField(default=0)
    foreign = models.PositiveIntegerField(default=0)
    adopted = models.PositiveIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="sweep_tenant_id"),
            models.UniqueConstraint(
                fields=["tenant", "connection"], condition=Q(finished_at__isnull=True), name="sweep_open_once"
            ),
        ]


class SettleLimit(models.Model):
    """Up to which amount a person may settle an operation of an action alone; above it a second one confirms."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="settle_limits")
    person = models.ForeignKey(User, on_delete=models.PROTECT, related_name="settle_limits")
    action = models.CharField(max_length=60, blank=True)  # blank: every action
    currency = models.CharField(max_length=3)
    each_minor = models.BigIntegerField()

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(
                fields=["tenant", "person", "action", "currency"], name="settlelimit_once"
            ),
        ]


class Settlement(models.Model):
    """What a person says became of an operation in doubt; it acts when enough people stand behind it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    operation = models.ForeignKey(
        Operation, on_delete=models.PROTECT, db_constraint=False, related_name="settlements"
    )
    verdict = models.CharField(max_length=16, choices=PersonsVerdict)
    provider_ref = models.CharField(max_length=120, blank=True)
    sealed_words = models.BinaryField()
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    channel = models.CharField(max_length=16)
    confirmed_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")
    asked_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)
    closed_as = models.CharField(max_length=16, blank=True)  # settled, quicker, replaced

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="settlement_tenant_id"),
            models.UniqueConstraint(
                fields=["tenant", "operation"],
                condition=Q(closed_at__isnull=True),
                name="settlement_open_once",
            ),
            models.CheckConstraint(
                condition=Q(verdict__in=PersonsVerdict.values), name="settlement_verdict_known"
            ),
            models.CheckConstraint(
                condition=Q(confirmed_by__isnull=True) | ~Q(confirmed_by=models.F("by")),
                name="settlement_confirmed_by_another",
            ),
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True) ^ ~Q(closed_as=""), name="settlement_open_or_closed"
            ),
        ]


class Incident(models.Model):
    """Something that people must look at once, however many operations it holds up."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="incidents")
    connection = models.ForeignKey(
        Connection, on_delete=models.PROTECT, null=True, db_constraint=False, related_name="incidents"
    )
    kind = models.CharField(max_length=40)
    about = models.CharField(max_length=120)
    told_to = ArrayField(models.CharField(max_length=120), default=list)
    opened_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=120, blank=True)

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(
                fields=["tenant", "kind", "about"],
                condition=Q(closed_at__isnull=True),
                name="incident_open_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.about}"
