"""What was decided and what was done: one entry in the transaction it tells of, sealed into blocks afterwards."""

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Func

from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.tenancy.models import Tenant

if TYPE_CHECKING:
    _TextField = models.Field[str, str]
else:
    _TextField = models.Field


class TransactionIdField(_TextField):
    """PostgreSQL's xid8: the transaction that wrote the row; a sealer takes what no open transaction can precede."""

    def db_type(self, connection: Any) -> str:
        return "xid8"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> str | None:
        return None if value is None else str(value)


class CurrentTransaction(Func):
    function = "pg_current_xact_id"
    template = "%(function)s()"
    arity = 0
    output_field = TransactionIdField()


class AuditEntry(models.Model):
    """One decision or effect: who, for whom, over which channel, which verb on which object."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    transaction_id = TransactionIdField(db_default=CurrentTransaction(), editable=False)
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=120)
    on_behalf_of = models.CharField(max_length=120, blank=True)
    channel = models.CharField(max_length=16)
    verb = models.CharField(max_length=60)
    object_type = models.CharField(max_length=32)
    object_id = models.CharField(max_length=64)
    security = models.BooleanField(default=False)
    before_digest = models.CharField(max_length=64, blank=True)
    after_digest = models.CharField(max_length=64, blank=True)
    sealed_detail = models.BinaryField()

    class Meta:
        verbose_name_plural = "audit entries"
        indexes: ClassVar[Any] = [
            models.Index(fields=["tenant", "-id"], name="auditentry_newest"),
            models.Index(fields=["tenant", "object_type", "object_id"], name="auditentry_object"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.object_type} {self.object_id}"


class AuditBlock(models.Model):
    """Entries of one tenant sealed together: Merkle root, chained to the block before, signed."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    number = models.PositiveBigIntegerField()
    entries = ArrayField(models.UUIDField())
    root = models.BinaryField(max_length=32)
    previous = models.BinaryField(max_length=32)
    signature = models.BinaryField(max_length=64)
    key_name = models.CharField(max_length=40)
    sealed_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["tenant", "number"], name="auditblock_number_once"),
        ]
