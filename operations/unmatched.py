"""Effects that a provider shows and whose operation is not here: kept, each once, until somebody finds out whose it is."""

from uuid import UUID

from agentops.kernel import sealed
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7
from agentops.kernel.redaction import mask_text
from agentops.kernel.sealed import Place
from agentops.tenancy import vault

from .connectors.base import Answer
from .models import Connection, Operation, Unmatched
from .states import Source


def keep(connection: Connection, source: Source, answer: Answer, *, claims: str = "") -> Unmatched:
    """The row of that effect, made where there is none: one for each reference, however often and by whom it is told.

    `claims` is the operation that the effect names. The answer names a reference.
    """
    known = Unmatched.objects.filter(
        tenant_id=connection.tenant_id, connection=connection, provider_ref=answer.provider_ref
    ).first()
    if known is not None:
        return known
    row_id = uuid7()
    evidence = {"detail": mask_text(answer.detail), "receipt": dict(answer.receipt or {})}
    row, _ = Unmatched.objects.get_or_create(
        tenant_id=connection.tenant_id,
        connection=connection,
        provider_ref=answer.provider_ref,
        defaults={
            "id": row_id,
            "source": source,
            "claims": claims[:60],
            "amount_minor": answer.amount_minor,
            "currency": answer.currency,
            "sealed_evidence": sealed.seal_json(
                vault.for_tenant(connection.tenant_id), evidence_place(row_id), evidence
            ),
        },
    )
    return row


def evidence_place(row_id: UUID) -> Place:
    return Place("operations_unmatched", str(row_id), "evidence")


def close(row: Unmatched, how: str, operation: Operation | None = None) -> None:
    """Somebody found out whose effect it is: `foreign`, `adopted` or `matched`."""
    Unmatched.objects.filter(pk=row.pk, closed_at=None).update(
        closed_at=now(), closed_as=how, operation=operation
    )
