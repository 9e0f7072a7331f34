"""What goes out to a tenant's endpoint: the message, and each try to deliver it."""

from typing import Any, ClassVar

from django.db import models

from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.tenancy.models import Tenant


class Outbox(models.Model):
    """One message, written in the transaction of what it tells."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    type = models.CharField(max_length=40)
    sealed_body = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(null=True, db_default=Now())

    class Meta:
        verbose_name_plural = "outbox"
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "id"], name="outbox_tenant_id")
        ]


class Delivery(models.Model):
    """One try to deliver a message."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    message = models.ForeignKey(
        Outbox, on_delete=models.PROTECT, db_constraint=False, related_name="deliveries"
    )
    number = models.PositiveSmallIntegerField()
    answered = models.PositiveSmallIntegerField(null=True)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "deliveries"
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "message", "number"], name="delivery_once"),
        ]
