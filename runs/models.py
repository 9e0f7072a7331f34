"""A run, who may advance it, what it has done, and what its readers were told."""

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from agentops.kernel.clock import Now
from agentops.kernel.ids import show, uuid7
from agentops.kernel.transitions import Stateful
from agentops.tenancy.models import DataKey, Tenant

from .states import MOVES, TERMINAL, RunStatus, StepKind, StepStatus


class AgentRelease(models.Model):
    """What decisions were made with: prompt, tool schemas, policy set, model route and limits, by digest."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    agent = models.CharField(max_length=40)
    digest = models.CharField(max_length=80)
    manifest = models.JSONField()  # names and digests, no prompt text
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="agentrelease_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "agent", "digest"], name="agentrelease_once"),
        ]

    def __str__(self) -> str:
        return f"{self.agent}@{self.digest[:12]}"


class Conversation(models.Model):
    """Runs that follow one another with the same counterpart; `external_id` is the client's name for it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    principal = models.CharField(max_length=80)
    external_id = models.CharField(max_length=120)
    data_key = models.ForeignKey(
        DataKey, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="conversation_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "principal", "external_id"], name="conversation_once"),
        ]


class AgentRun(Stateful):
    """One execution of an agent: a durable row that any worker can carry on."""

    MOVES = MOVES

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, db_index=False, related_name="runs")
    actor = models.CharField(max_length=120)  # whom it acts for: "customer:C-1", "user:7", or "tenant:acme"
    principal = models.CharField(max_length=80)  # the token or person that started it
    channel = models.CharField(max_length=16)
    agent = models.CharField(max_length=40)
    release = models.ForeignKey(
        AgentRelease, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    pool = models.CharField(max_length=32, default="default")
    status = models.CharField(max_length=24, choices=RunStatus, default=RunStatus.QUEUED)
    ending = models.CharField(
        max_length=16, blank=True
    )  # "cancelled" or "failed" once it is on its way to that end
    ending_actor = models.CharField(max_length=120, blank=True)
    ending_reason = models.CharField(max_length=500, blank=True)
    blocked_on = ArrayField(models.CharField(max_length=16), default=list)
    open_effects = models.IntegerField(default=0)
    data_key = models.ForeignKey(
        DataKey, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    sealed_input = models.BinaryField()
    sealed_result = models.BinaryField(null=True)
    conversation = models.ForeignKey(
        Conversation,
        on_delete=models.PROTECT,
        null=True,
        db_constraint=False,
        db_index=False,
        related_name="runs",
    )
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, related_name="children"
    )
    root = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    parent_step = models.CharField(
        max_length=200, blank=True
    )  # the place in the parent's journal that started it: the same place never starts two
    detached = models.BooleanField(default=False)  # does not end with its parent, which does not wait for it
    retry_of = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, related_name="retries"
    )
    retried_by = models.CharField(max_length=120, blank=True)  # who let it carry on the work of `retry_of`
    rerun_of = models.ForeignKey(  # whose request it takes up from the beginning; it inherits nothing
        "self", on_delete=models.PROTECT, null=True, db_constraint=False, related_name="reruns"
    )
    dedupe_key = models.CharField(max_length=120, null=True)
    priority = models.SmallIntegerField(default=0)  # smaller first
    concurrency_key = models.CharField(max_length=120, blank=True)
    concurrency_limit = models.PositiveSmallIntegerField(default=1)  # leases at once under its key
    metadata = models.JSONField(default=dict)  # labels: masked by pattern, clear at rest, filterable
    budget_microusd = models.BigIntegerField()
    spent_microusd = models.BigIntegerField(default=0)
    reserved_microusd = models.BigIntegerField(default=0)  # the worst price of the turn that is being asked
    slice_microusd = models.BigIntegerField(
        null=True
    )  # taken from the parent or the tenant so far; None: its whole budget is its own
    given_microusd = models.BigIntegerField(default=0)  # what children hold of it or have used up
    max_steps = models.PositiveIntegerField()
    deadline_at = models.DateTimeField(null=True)
    steps_taken = models.PositiveIntegerField(default=0)
    last_event_seq = models.PositiveIntegerField(default=0)
    inbox_seq = models.PositiveIntegerField(default=0)
    inbox_taken = models.PositiveIntegerField(default=0)
    lease_owner = models.CharField(max_length=64, null=True)
    lease_epoch = models.PositiveIntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(
        null=True, db_default=Now()
    )  # when it may next be claimed; while leased: the lease's end
    stepped_aside = models.BooleanField(default=False)  # it is ready, and what it waits for is its key
    paused_at = models.DateTimeField(null=True)
    paused_by = models.CharField(max_length=120, blank=True)
    pause_reason = models.CharField(max_length=500, blank=True)  # masked
    needs = ArrayField(
        models.CharField(max_length=120), default=list
    )  # what a worker must have to carry it on: "tool:refund_order", "action:refund.create@2"
    crash_count = models.PositiveSmallIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=60, blank=True)
    error_detail = models.CharField(max_length=500, blank=True)  # masked
    trace_id = models.CharField(max_length=32)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    # Whether others must be told of its end: its parent, its children, the next of its conversation, who lent it budget.
    aftermath = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="run_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "retry_of"], name="run_retried_once"),
            models.UniqueConstraint(
                fields=["tenant", "parent", "parent_step"],
                condition=Q(parent__isnull=False),
                name="run_child_once",
            ),
            models.CheckConstraint(
                condition=Q(given_microusd__gte=0, reserved_microusd__gte=0)
                & (Q(slice_microusd__isnull=True) | Q(slice_microusd__gte=0)),
                name="run_budget_not_negative",
            ),
            models.UniqueConstraint(
                fields=["tenant", "agent", "dedupe_key"],
                condition=~Q(status__in=sorted(TERMINAL)),
                name="run_dedupe_key_active_once",
            ),
            models.CheckConstraint(condition=Q(status__in=RunStatus.values), name="run_status_known"),
            models.CheckConstraint(
                condition=Q(ending__in=["", "cancelled", "failed"]), name="run_ending_known"
            ),
            models.CheckConstraint(
                condition=~Q(status__in=sorted(TERMINAL)) | Q(open_effects=0),
                name="run_ends_without_open_effects",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=sorted(TERMINAL))
                | Q(lease_owner__isnull=True, ready_at__isnull=True),
                name="run_ends_without_lease",
            ),
            models.CheckConstraint(
                condition=Q(ending="") | Q(lease_owner__isnull=True), name="run_ending_holds_no_lease"
            ),
            models.CheckConstraint(
                condition=Q(status__in=sorted(TERMINAL)) ^ Q(finished_at__isnull=True),
                name="run_finished_iff_terminal",
            ),
            models.CheckConstraint(condition=Q(open_effects__gte=0), name="run_open_effects_not_negative"),
            models.CheckConstraint(
                condition=Q(lease_owner__isnull=True) ^ Q(lease_expires_at__isnull=False),
                name="run_lease_whole",
            ),
            models.CheckConstraint(
                condition=Q(inbox_taken__lte=F("inbox_seq")), name="run_inbox_taken_exists"
            ),
            models.CheckConstraint(
                condition=Q(paused_at__isnull=True) ^ ~Q(paused_by=""), name="run_paused_by_somebody"
            ),
        ]
        indexes: ClassVar[Any] = [
            models.Index(
                fields=["pool", "tenant", "priority", "ready_at"],
                condition=Q(ready_at__isnull=False, paused_at__isnull=True),
                name="run_ready",
            ),
            models.Index(
                fields=["ready_at"],
                condition=Q(ready_at__isnull=False, paused_at__isnull=True),
                name="run_due",
            ),
            models.Index(
                fields=["cancel_requested_at"],
                condition=Q(ending="cancelled", finished_at__isnull=True),
                name="run_cancelling",
            ),
            models.Index(
                fields=["tenant", "concurrency_key", "priority", "ready_at"],
                condition=~Q(concurrency_key="") & Q(finished_at__isnull=True),
                name="run_keyed",
            ),
            models.Index(
                fields=["tenant", "concurrency_key", "priority", "ready_at"],
                condition=Q(stepped_aside=True),
                name="run_stepped_aside",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(aftermath=True, finished_at__isnull=False),
                name="run_aftermath",
            ),
            models.Index(
                fields=["lease_owner"], condition=Q(lease_owner__isnull=False), name="run_leased_by"
            ),
            models.Index(fields=["tenant"], condition=Q(lease_owner__isnull=False), name="run_leased_of"),
            models.Index(
                fields=["conversation", "id"],
                condition=Q(conversation__isnull=False),
                name="run_of_conversation",
            ),
            models.Index(
                fields=["conversation", "id"],
                condition=Q(conversation__isnull=False) & ~Q(status__in=sorted(TERMINAL)),
                name="run_unended_of",
            ),
            models.Index(fields=["tenant", "-created_at", "-id"], name="run_newest"),
            models.Index(fields=["tenant", "status", "-created_at", "-id"], name="run_newest_by_status"),
            models.Index(
                fields=["deadline_at"],
                condition=Q(deadline_at__isnull=False, finished_at__isnull=True),
                name="run_deadline",
            ),
            models.Index(fields=["pool"], condition=~Q(needs=[]), name="run_needs_something"),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return show("run", self.id)

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and not self.is_terminal


class Step(models.Model):
    """A named unit of a run, done once: its recorded result is read back in every later life."""

    pk = models.CompositePrimaryKey("run_id", "key")
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="steps"
    )
    key = models.CharField(max_length=200)  # a position: "turn-3/call-0/receipt-mail"
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    kind = models.CharField(max_length=16, choices=StepKind)
    name = models.CharField(max_length=80)
    status = models.CharField(max_length=16, choices=StepStatus)
    attempt = models.PositiveSmallIntegerField(default=1)
    input_digest = models.CharField(max_length=80, blank=True)
    sealed_input = models.BinaryField(null=True)  # masked; a model turn's input is the conversation itself
    sealed_result = models.BinaryField(null=True)
    error_class = models.CharField(max_length=80, blank=True)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    model = models.CharField(max_length=80, blank=True)
    input_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    cost_microusd = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar[Any] = [
            models.CheckConstraint(condition=Q(status__in=StepStatus.values), name="step_status_known"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="step_kind_known"),
            models.CheckConstraint(
                condition=~Q(status="completed") | Q(sealed_result__isnull=False, ended_at__isnull=False),
                name="step_completed_has_result",
            ),
        ]


class RunEvent(models.Model):
    """A fact of the run's log. `seq` counts up by one within the run, in the order of commits."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="events"
    )
    seq = models.PositiveIntegerField()
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    type = models.CharField(max_length=40)
    at = models.DateTimeField(db_default=Now())
    sealed_data = models.BinaryField()


class InboxMessage(models.Model):
    """A signal for a run, kept in order until it is taken: an approval, a follow-up, a webhook, a child's end."""

    pk = models.CompositePrimaryKey("run_id", "n")
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="inbox"
    )
    n = models.PositiveIntegerField()
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    kind = models.CharField(max_length=16)
    dedupe_key = models.CharField(max_length=120, null=True)
    sealed_body = models.BinaryField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["run", "kind", "dedupe_key"], name="inbox_dedupe_once"),
        ]


class BusyCall(models.Model):
    """A tool call that a worker's thread is still in, though its run has no use for it any more: it can write nothing.

    The worker says so again every second; a row that it does not repeat is the row of a dead process.
    """

    pk = models.CompositePrimaryKey("run_id", "key")
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="busy_calls"
    )
    key = models.CharField(max_length=200)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    worker = models.CharField(max_length=64)
    seen_at = models.DateTimeField(db_default=Now())


class AgentPause(models.Model):
    """An agent that starts no new run of a tenant; those that it has go on to their end."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    agent = models.CharField(max_length=40)
    paused_at = models.DateTimeField(db_default=Now())
    paused_by = models.CharField(max_length=120)
    reason = models.CharField(max_length=500)  # masked

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "agent"], name="agentpause_once"),
        ]


class Slot(models.Model):
    """The row that is locked to count and take a tenant's concurrent runs, and slices of its budget."""

    tenant = models.OneToOneField(Tenant, on_delete=models.PROTECT, primary_key=True, related_name="+")
    served_at = models.DateTimeField(db_default=Now())
    deficit = models.IntegerField(default=0)  # runs that it may be given before its turn is over
    given_microusd = models.BigIntegerField(
        default=0
    )  # what runs hold of the tenant's budget or have used up


class IdempotencyKey(models.Model):
    """A caller's own name for one request, and the answer it got: one table for every door."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    caller = models.CharField(max_length=80)
    route = models.CharField(max_length=80)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=80)
    run = models.ForeignKey(
        AgentRun, on_delete=models.PROTECT, null=True, db_constraint=False, related_name="+"
    )
    response_status = models.PositiveSmallIntegerField()
    response_headers = models.JSONField(default=dict)
    sealed_body = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "caller", "route", "key"], name="idempotencykey_once"),
        ]
