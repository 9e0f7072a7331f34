"""Operations over REST: the receipt of an effect."""

from django.http import HttpRequest
from ninja import Router

from agentops.kernel.problems import NotFound
from operations.models import Operation

from . import mapping, shapes
from .door import BearerToken, caller

router = Router(tags=["Operations"])


@router.get(
    "/operations/{operation_id}",
    auth=BearerToken("operations:read"),
    response=shapes.Operation,
    exclude_unset=True,
    operation_id="getOperation",
    summary="Look at an operation",
)
def show(request: HttpRequest, operation_id: str) -> shapes.Operation:
    """Where one intended change stands, with the provider's proof once it has succeeded."""
    mine = Operation.objects.filter(tenant=caller(request).tenant).select_related("connection")
    operation = mapping.named(mine, "op", operation_id)
    if operation is None:
        raise NotFound(f"There is no operation {operation_id}. GET /v1/runs/{{run_id}} lists those of a run.")
    return mapping.operation(operation)
