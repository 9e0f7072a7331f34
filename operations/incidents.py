"""Incidents: one for a cause, however many operations wait behind it."""

from typing import Any
from uuid import UUID

from agentops.audit.entries import SYSTEM, record
from agentops.kernel.clock import Now

from .models import Connection, Incident, Operation

# Until somebody mends it nothing is sent.
CREDENTIAL_CODES = ("credential_refused", "credential_missing", "connection_disabled")


def open_incident(operation: Operation, kind: str, *, about: str = "") -> Incident:
    """The open incident of that kind about `about` (by default the operation's connection), made where there is none."""
    return _opened(operation.tenant_id, operation.connection_id, kind, about)


def open_at(connection: Connection, kind: str) -> Incident:
    """The same where no operation is known: about the connection."""
    return _opened(connection.tenant_id, connection.id, kind)


def _opened(tenant_id: int, connection_id: UUID, kind: str, about: str = "") -> Incident:
    incident, _ = Incident.objects.get_or_create(
        tenant_id=tenant_id,
        kind=kind,
        about=about or str(connection_id),
        closed_at=None,
        defaults={"connection_id": connection_id},
    )
    return incident


def is_open(operation: Operation, kind: str, *, about: str) -> bool:
    open_ones = Incident.objects.filter(tenant_id=operation.tenant_id, kind=kind, closed_at=None)
    return open_ones.filter(about=about).exists()


def hold_incident(operation: Operation, kind: str, *, about: str) -> None:
    """Lock the open incident of that kind: before settlements, where the same transaction may close both."""
    rows = Incident.objects.filter(tenant_id=operation.tenant_id, kind=kind, about=about, closed_at=None)
    list(rows.select_for_update(no_key=True).values_list("id", flat=True))


def close_incident(operation: Operation, *kinds: str, about: str = "") -> None:
    """Close the incidents of these kinds about `about` (by default the connection): evidence showed that they are over."""
    Incident.objects.filter(
        tenant_id=operation.tenant_id,
        kind__in=kinds,
        about=about or str(operation.connection_id),
        closed_at=None,
    ).update(closed_at=Now(), closed_by="system")


def lacks_credential(operation: Operation) -> bool:
    """Whether the operation's connection waits for somebody to mend its credential."""
    return Incident.objects.filter(
        tenant_id=operation.tenant_id,
        kind__in=CREDENTIAL_CODES,
        about=str(operation.connection_id),
        closed_at=None,
    ).exists()


def alarm(operation: Operation, verb: str, detail: dict[str, Any]) -> None:
    """An incident with a security entry, once while it is open; each piece of evidence is a finding anyway."""
    if is_open(operation, verb, about=operation.public_id):
        return
    record(
        operation.tenant_id,
        f"operation.{verb}",
        "operation",
        operation.public_id,
        SYSTEM,
        detail=detail,
        security=True,
    )
    open_incident(operation, verb, about=operation.public_id)
