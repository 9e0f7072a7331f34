"""Tenants, people, their access, and the keys that seal a tenant's rows."""

from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7


class User(AbstractUser):
    """A person who signs in. What they may do where is a grant on a tenant, never on a row."""

    email = models.EmailField(blank=True)


class Tenant(models.Model):
    """One customer of the installation. Suspended, never deleted."""

    class State(models.TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"  # starts nothing and sends nothing; an administrator sets it back

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=120)
    state = models.CharField(max_length=16, choices=State, default=State.ACTIVE)
    timezone = models.CharField(max_length=64, default="UTC")
    weight = models.PositiveSmallIntegerField(default=1)
    concurrent_runs = models.PositiveIntegerField(default=100)  # leases at once; the claim is exact
    open_runs = models.PositiveIntegerField(default=100_000)  # queued and leased ones, advisory at the door
    budget_microusd = models.BigIntegerField(
        null=True, blank=True
    )  # for all its runs together; None: no limit
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions: ClassVar[Any] = [
            ("view_runs", "see runs"),
            ("cancel_runs", "cancel runs"),
            ("control_runs", "start, pause, resume and retry runs; pause agents"),
            ("view_operations", "see operations"),
            ("settle_operations", "settle operations whose outcome is unknown"),
            ("view_approvals", "see proposals"),
            ("decide_approvals", "decide proposals"),
            ("view_audit", "see the audit log"),
            ("manage_policies", "write policies"),
            ("manage_access", "manage people and tokens"),
        ]
        constraints: ClassVar[Any] = [
            models.CheckConstraint(condition=Q(state__in=["active", "suspended"]), name="tenant_state_known"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="tenant_weight_positive"),
        ]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A person's place in a tenant; the rights that go with the role are guardian grants."""

    class Role(models.TextChoices):
        REVIEWER = "reviewer"
        LEAD = "lead"
        ENGINEER = "engineer"
        POLICY_OWNER = "policy_owner"
        TENANT_ADMIN = "tenant_admin"
        AUDITOR = "auditor"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once"),
        ]

    def __str__(self) -> str:
        return f"{self.user} · {self.tenant} · {self.role}"


class ApiToken(models.Model):
    """A bearer token: shown once, stored as a hash. Bound to a person it acts with that person's rights."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="tokens")
    person = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)
    hash = models.BinaryField(max_length=32, unique=True)
    scopes = ArrayField(models.CharField(max_length=32))
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="apitoken_tenant_id"),
            models.UniqueConstraint(fields=["tenant", "name"], name="apitoken_name_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class DataKey(models.Model):
    """A key that seals rows of one subject, wrapped by its tenant's key; that one is wrapped by a master key.

    Erasure drops `wrapped`: the rows stay, nobody can read them any more. A retired key still opens what it sealed.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="data_keys")
    subject = models.CharField(max_length=120)  # "tenant", "identity", "conversation:…", "run:…", …
    wrapped = models.BinaryField(null=True)
    wrapped_by = models.UUIDField(null=True)  # the tenant's key; None: a master key
    created_at = models.DateTimeField(db_default=Now())
    retired_at = models.DateTimeField(null=True)  # a tenant's key that a newer one has followed
    erased_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="datakey_tenant_id"),
            models.UniqueConstraint(
                fields=["tenant", "subject"],
                condition=Q(erased_at__isnull=True, retired_at__isnull=True),
                name="datakey_subject_once",
            ),
            models.CheckConstraint(
                condition=Q(erased_at__isnull=True, wrapped__isnull=False)
                | Q(erased_at__isnull=False, wrapped__isnull=True),
                name="datakey_wrapped_until_erased",
            ),
        ]
        indexes: ClassVar[Any] = [
            models.Index(fields=["tenant", "wrapped_by", "id"], name="datakey_wrapped_by")
        ]
