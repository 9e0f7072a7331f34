"""Reading operations: the receipt, every attempt, every finding."""

from typing import Any

from agentops.tenancy import vault

from .findings import finding_place
from .models import Attempt, Finding, Operation
from .outcomes import receipt_place
from .services import params

__all__ = ["attempts", "findings", "params", "receipt"]


def receipt(operation: Operation) -> dict[str, Any] | None:
    """The provider's proof; None until there is one."""
    if operation.sealed_receipt is None:
        return None
    found: dict[str, Any] = vault.unseal(receipt_place(operation.id), operation.sealed_receipt)
    return found


def attempts(operation: Operation) -> list[Attempt]:
    """Every request on the wire, oldest first."""
    return list(Attempt.objects.filter(operation_id=operation.id).order_by("number"))


def findings(operation: Operation) -> list[dict[str, Any]]:
    """Every piece of evidence, oldest first: {number, at, source, verdict, attempt, provider_ref, code, detail, actor}."""
    return [
        {
            "number": row.number,
            "at": row.at,
            "source": row.source,
            "verdict": row.verdict,
            "attempt": row.attempt,
            "provider_ref": row.provider_ref,
            "code": row.code,
            "detail": vault.unseal(finding_place(row.operation_id, row.number), row.sealed_evidence)[
                "detail"
            ],
            "actor": row.actor,
        }
        for row in Finding.objects.filter(operation_id=operation.id).order_by("number")
    ]
