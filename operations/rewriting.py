"""A pending operation under other parameters or another version of its action: it stays the same one, by its key."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agentops.audit.entries import Actor
from agentops.kernel import canonical, sealed
from agentops.kernel.problems import Invalid
from agentops.tenancy import vault

from .connectors.registry import ACTIONS
from .models import Operation
from .moves import Locked, move
from .services import digest_of, params, params_place
from .states import OperationStatus


@dataclass(frozen=True)
class Rewritten:
    """The columns that would change."""

    columns: Mapping[str, Any]

    def draft_of(self, operation: Operation) -> Operation:
        """`operation` as it would stand; nothing is stored."""
        draft = copy(operation)
        for name, value in self.columns.items():
            setattr(draft, name, value)
        return draft

    def digest_of(self, operation: Operation) -> str:
        return digest_of(self.draft_of(operation))


def rewritten(operation: Operation, changes: Mapping[str, Any]) -> Rewritten:
    """How the operation would read with `changes` in its parameters, by its action as it is here. Raises Invalid.

    What a connector has added to the parameters beyond the action's own stays as it is.
    """
    action = ACTIONS.get(operation.action)
    if action is None:
        raise Invalid(f"The present release has no action {operation.action}.", code="no_action")
    before = params(operation)
    asked = {name: value for name, value in before.items() if name in action.params.model_fields}
    try:
        valid = action.params.model_validate({**asked, **changes})
        plain = canonical.canonical(valid.model_dump(mode="json"))
    except (ValidationError, canonical.NotCanonical) as error:
        raise Invalid(f"{operation.action} takes no such parameters.", code="invalid_params") from error
    added = {name: value for name, value in before.items() if name not in action.params.model_fields}
    after, amount = {**added, **plain}, action.amount(valid)
    key = vault.opened(operation.data_key_id)
    return Rewritten(
        {
            "action_version": action.version,
            "sealed_params": sealed.seal_json(key, params_place(operation.id), after),
            "params_digest": canonical.digest("params", after),
            "amount_minor": amount[0] if amount else None,
            "currency": amount[1] if amount else "",
        }
    )


def rewrite(locked: Locked, anew: Rewritten, actor: Actor, *, reason: str) -> None:
    """Write a locked, pending operation anew, of which nothing was ever sent."""
    operation = locked.operation
    assert operation.status == OperationStatus.PENDING
    assert operation.attempts == 0
    told = {"was_minor": operation.amount_minor} if operation.amount_minor is not None else {}
    move(locked, OperationStatus.PENDING, reason=reason, actor=actor, told=told, **anew.columns)
