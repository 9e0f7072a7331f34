"""The credential of a connection: taken away, put back; what waits for it goes on at once."""

from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.tenancy import vault
from runs.wakeups import ring_operations

from .models import Connection, Operation
from .services import connection_place
from .states import OperationStatus


@transaction.atomic
def remove_credential(connection: Connection, actor: Actor) -> None:
    """Nothing is sent or asked over this connection any more; what was allowed waits, and its approvals keep their clock."""
    Connection.objects.filter(pk=connection.pk).update(sealed_credential=b"")
    _record(connection, "credential_removed", actor)


def set_credential(connection: Connection, secret: str, actor: Actor) -> list[Operation]:
    """Seal a new credential, and let what waits behind this connection be looked at now: the operations that go on.

    Whether the provider takes it shows at the first of them; until one is answered the incident stays open.
    """
    key = vault.for_tenant(connection.tenant_id)
    envelope = sealed.seal_json(key, connection_place(connection.id), {"secret": secret})
    with transaction.atomic():
        Connection.objects.filter(pk=connection.pk).update(sealed_credential=envelope)
        _record(connection, "credential_set", actor)
    waiting = Operation.objects.filter(
        tenant_id=connection.tenant_id,
        connection=connection,
        status__in=[OperationStatus.APPROVED, OperationStatus.UNKNOWN],
        next_attempt_at__isnull=False,
    )
    going_on = list(waiting.order_by("id"))
    for operation in going_on:  # one row and one commit each: no two locks at a time
        Operation.objects.filter(pk=operation.pk).update(next_attempt_at=Now())
    if going_on:
        ring_operations()
    return going_on


def _record(connection: Connection, verb: str, actor: Actor) -> None:
    record(
        connection.tenant_id, f"connection.{verb}", "connection", connection.public_id, actor, security=True
    )
