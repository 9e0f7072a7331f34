"""The verbs before anything is sent: say what is intended, read what it rests on, propose it."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ValidationError

from agentops.audit.entries import Actor, record
from agentops.kernel import canonical, sealed
from agentops.kernel.ids import parse, show, uuid7
from agentops.kernel.sealed import Place
from agentops.sdk.errors import JournalMismatch, Terminal
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant
from runs.events import Event, append
from runs.models import AgentRun

from .connectors.base import Action, Call, CheckFailed, Facts
from .connectors.registry import ACTIONS, CONNECTORS
from .models import Connection, Interest, Operation, Target
from .moves import Locked, facts_of
from .occurrences import AskAgain, adopted_after, opens_next
from .states import WITHOUT_EFFECT, OperationStatus
from .targets import remember_facts


@dataclass(frozen=True)
class Intended:
    """A valid intent that nothing is stored of yet."""

    operation_id: UUID
    action: Action
    connection: Connection
    tenant: Tenant
    actor: str
    agent: str
    target: str
    params: dict[str, Any]
    reference: str
    amount_minor: int | None
    currency: str
    facts: Facts = field(default_factory=Facts)
    undoes: UUID | None = None  # the operation that this one would undo
    asked: dict[str, Any] | None = None  # the parameters as they were proposed, where rules have lowered some
    lowered: tuple[dict[str, Any], ...] = ()  # {field, from, to, by: the code of a rule}

    def proposal_digest(self, occurrence: int) -> str:
        """What an approval is bound to: everything of what will be sent."""
        return proposal_digest(
            action=self.action.name,
            version=self.action.version,
            target=f"{self.action.target_type}:{self.target}",
            connection=self.connection.id,
            params=self.params,
            amount_minor=self.amount_minor,
            currency=self.currency,
            occurrence=occurrence,
        )


def proposal_digest(
    *,
    action: str,
    version: int,
    target: str,
    connection: UUID,
    params: dict[str, Any],
    amount_minor: int | None,
    currency: str,
    occurrence: int,
) -> str:
    return canonical.digest(
        "proposal",
        {
            "action": action,
            "version": version,
            "target": target,
            "connection": str(connection),
            "params": params,
            "amount_minor": amount_minor,
            "currency": currency,
            "occurrence": occurrence,
        },
    )


def digest_of(operation: Operation) -> str:
    """The digest of what an operation would send, from its committed record. Raises CannotUnseal."""
    return proposal_digest(
        action=operation.action,
        version=operation.action_version,
        target=operation.target_text,
        connection=operation.connection_id,
        params=params(operation),
        amount_minor=operation.amount_minor,
        currency=operation.currency,
        occurrence=operation.occurrence,
    )


def intend(
    run: AgentRun, action_name: str, *, target: str, params: dict[str, Any], reference: str
) -> Intended:
    """Check an intent against its action's schema. Raises Terminal with what the model can mend."""
    action = ACTIONS.get(action_name)
    if action is None:
        raise Terminal(f"There is no action {action_name}.", code="unknown_action")
    kind, _, name = target.partition(":")
    if kind != action.target_type or not name:
        raise Terminal(f"{action_name} needs a target like {action.target_type}:<id>.", code="invalid_target")
    try:
        valid: BaseModel = action.params.model_validate(params)
        plain = canonical.canonical(valid.model_dump(mode="json"))
        wanted_reference = canonical.reference(reference)
        name = canonical.reference(name)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Terminal(f"{action_name}: {place}: {first['msg']}", code="invalid_params") from None
    except canonical.NotCanonical as error:
        raise Terminal(f"{action_name}: {error}", code="invalid_params") from None
    if not wanted_reference:
        raise Terminal(
            f"{action_name} needs a reference that tells two requests apart.", code="invalid_params"
        )
    usable = Connection.objects.filter(tenant_id=run.tenant_id, connector=action.connector, enabled=True)
    # A live one before its tested twin, which is there for the contract test alone.
    connection = usable.order_by("mode", "id").first()
    if connection is None:
        raise Terminal(f"This tenant has no connection for {action_name}.", code="no_connection")
    amount = action.amount(valid)
    undoes = undone_by(run.tenant_id, action, name, wanted_reference) if action.reverses else None
    return Intended(
        operation_id=uuid7(),
        action=action,
        connection=connection,
        tenant=run.tenant,
        actor=run.actor,
        agent=run.agent,
        target=name,
        params=plain,
        reference=wanted_reference,
        amount_minor=amount[0] if amount else None,
        currency=amount[1] if amount else "",
        undoes=undoes,
    )


def undone_by(tenant_id: int, action: Action, target: str, reference: str) -> UUID:
    """What an action that undoes another is about: its reference names that operation. Raises Terminal."""
    named = parse("op", reference)
    known = Operation.objects.filter(
        tenant_id=tenant_id, action=action.reverses, target_name=target, status=OperationStatus.SUCCEEDED
    )
    undone = known.filter(pk=named).first() if named else None
    if undone is None:
        raise Terminal(
            f"{action.name} needs, as its reference, the {action.reverses} of that target that it undoes.",
            code="nothing_to_undo",
        )
    return undone.id


def read_facts(intended: Intended) -> Intended:
    """`intended` with what it rests on, read now from the systems that own it. Raises CheckFailed."""
    connector = CONNECTORS[intended.action.connector]
    intended = replace(
        intended, params=canonical.canonical(dict(connector.enrich(_call_of_intent(intended))))
    )
    return replace(intended, facts=connector.check(_call_of_intent(intended)))


def lower(intended: Intended, to: Mapping[str, int], by: str) -> Intended:
    """`intended` with less of what its action lets be lowered, and with its facts read anew. Raises CheckFailed.

    It stays the intent that it was: its key is of what was asked for, and its digest of what will be sent.
    """
    params = {**intended.params, **to}
    amount = intended.action.amount(intended.action.params.model_validate(params))
    was = [{"field": name, "from": intended.params[name], "to": less, "by": by} for name, less in to.items()]
    intended = replace(
        intended,
        params=params,
        amount_minor=amount[0] if amount else None,
        asked=intended.asked or intended.params,
        lowered=(*intended.lowered, *was),
    )
    return replace(intended, facts=CONNECTORS[intended.action.connector].check(_call_of_intent(intended)))


def _call_of_intent(intended: Intended) -> Call:
    return Call(
        operation_id=show("op", intended.operation_id),
        tenant=intended.tenant.slug,
        actor=intended.actor,
        agent=intended.agent,
        action=intended.action.name,
        action_version=intended.action.version,
        target_type=intended.action.target_type,
        target=intended.target,
        params=intended.params,
        amount_minor=intended.amount_minor,
        currency=intended.currency,
        idempotency_key="",
        generation=0,
        provider_ref="",
        base_url=intended.connection.base_url,
        credential=credential(intended.connection),
        timeout_seconds=settings.AGENTOPS_SEND_SECONDS,
    )


def operation_key(intended: Intended, occurrence: int) -> str:
    """The identity of an intent: the fields that are its business meaning, and always a reference."""
    asked = intended.asked or intended.params
    meaning = {name: asked.get(name) for name in intended.action.intent}
    return canonical.digest(
        "operation",
        [
            intended.tenant.slug,
            intended.actor,
            intended.action.name,
            f"{intended.action.target_type}:{intended.target}",
            {**meaning, "reference": intended.reference},
            occurrence,
        ],
    )


def idempotency_key(tenant_id: int, key: str, generation: int) -> str:
    """Derived, so that an operation that was lost and proposed again meets its old self at the provider."""
    secret = vault.identity_secret(tenant_id)
    return (
        "ao_" + hmac.new(secret, f"idempotency/{key}/{generation}".encode(), hashlib.sha256).hexdigest()[:48]
    )


def connection_place(connection_id: UUID) -> Place:
    return Place("operations_connection", str(connection_id), "credential")


def credential(connection: Connection) -> str:
    """The secret of a connection; it goes to the provider and nowhere else. Raises CheckFailed where it was removed."""
    if not bytes(connection.sealed_credential):
        raise CheckFailed("credential_missing", f"{connection} has no credential now.", retryable=True)
    text: str = vault.unseal(connection_place(connection.id), connection.sealed_credential)["secret"]
    return text


def params_place(operation_id: UUID) -> Place:
    return Place("operations_operation", str(operation_id), "params")


@dataclass(frozen=True)
class Proposed:
    """`is_new`: recorded now; else it is the operation that this intent has already, here or in another run."""

    locked: Locked
    is_new: bool

    @property
    def operation(self) -> Operation:
        return self.locked.operation


def propose(
    run: AgentRun, step: str, intended: Intended, actor: Actor, *, may_ask_again: AskAgain
) -> Proposed:
    """Record an intent as an operation of the locked, living `run`; call it inside a transaction.

    The same intent that is alive or has succeeded is returned instead and `run` joins it. One that ended surely without
    effect opens the next occurrence, linked to the old one, as `opens_next` says.
    """
    target = _locked_target(intended)
    if (undoing := _undoing(intended)) is not None:
        return _joined(run, step, undoing)
    previous: Operation | None = None
    for occurrence in range(1_000):
        key = operation_key(intended, occurrence)
        found = (
            Operation.objects.select_for_update(no_key=True)
            .filter(tenant_id=run.tenant_id, operation_key=key)
            .first()
        )
        if found is None:
            return _new(run, step, intended, actor, target, key, occurrence, previous)
        if not opens_next(run, found, may_ask_again):
            return _joined(run, step, found)
        adopted = adopted_after(found)  # it says that nothing was done, and the provider showed otherwise
        if adopted is not None and not opens_next(run, adopted, may_ask_again):
            return _joined(run, step, adopted)
        previous = found
    raise Terminal("This intent was refused a thousand times.", code="too_many_occurrences")


def _undoing(intended: Intended) -> Operation | None:
    """What undoes the same operation already, or has undone it, whoever asked for that."""
    if intended.undoes is None:
        return None
    others = Operation.objects.select_for_update(no_key=True).exclude(status__in=WITHOUT_EFFECT)
    return others.filter(tenant_id=intended.tenant.id, reverses_id=intended.undoes).first()


def record_adopted(
    run: AgentRun, intended: Intended, key: str, actor: Actor, previous: Operation | None
) -> Locked:
    """Record an effect that is there already as an operation of a new `run`, under the key that its place gives it."""
    return _new(run, "adopted", intended, actor, _locked_target(intended), key, 0, previous).locked


def _locked_target(intended: Intended) -> Target:
    target, _ = Target.objects.get_or_create(
        tenant_id=intended.tenant.id,
        connection=intended.connection,
        type=intended.action.target_type,
        external_id=intended.target,
        defaults={"currency": intended.currency},
    )
    return Target.objects.select_for_update(no_key=True).get(pk=target.pk)


def _new(
    run: AgentRun,
    step: str,
    intended: Intended,
    actor: Actor,
    target: Target,
    key: str,
    occurrence: int,
    previous: Operation | None,
) -> Proposed:
    data_key = vault.opened(run.data_key_id)
    operation_id = intended.operation_id
    operation = Operation.objects.create(
        id=operation_id,
        tenant_id=run.tenant_id,
        actor=intended.actor,
        run_id=run.id,
        step=step,
        action=intended.action.name,
        action_version=intended.action.version,
        target=target,
        target_type=intended.action.target_type,
        target_name=intended.target,
        connection=intended.connection,
        data_key_id=run.data_key_id,
        sealed_params=sealed.seal_json(data_key, params_place(operation_id), intended.params),
        params_digest=canonical.digest("params", intended.params),
        amount_minor=intended.amount_minor,
        currency=intended.currency,
        reference=intended.reference,
        lowered=list(intended.lowered),
        occurrence=occurrence,
        previous=previous,
        reverses_id=intended.undoes,
        operation_key=key,
        idempotency_key=idempotency_key(run.tenant_id, key, 0),
    )
    Interest.objects.create(run_id=run.id, step=step, tenant_id=run.tenant_id, operation_id=operation_id)
    AgentRun.objects.filter(pk=run.pk).update(open_effects=run.open_effects + 1)
    run.open_effects += 1
    remember_facts(target, intended.facts)
    append(
        run, Event("operation.proposed", {**facts_of(operation), "from": None, "reason": "", "step": step})
    )
    record(
        run.tenant_id,
        "operation.proposed",
        "operation",
        operation.public_id,
        actor,
        after={"status": "pending", "params": operation.params_digest},
        detail={"action": operation.action, "target": operation.target_text, "run": run.public_id},
    )
    return Proposed(Locked(operation, {run.id: run}), True)


def _joined(run: AgentRun, step: str, operation: Operation) -> Proposed:
    Interest.objects.get_or_create(
        run_id=run.id, step=step, defaults={"tenant_id": run.tenant_id, "operation_id": operation.id}
    )
    return Proposed(Locked(operation, {run.id: run}), False)


def of_step(run: AgentRun, step: str) -> Operation | None:
    """The operation that stands at this step of the run, its own or one that it joined."""
    interest = Interest.objects.filter(run_id=run.id, step=step).select_related("operation").first()
    return interest.operation if interest else None


def same_intent(operation: Operation, intended: Intended) -> None:
    """Raises JournalMismatch where a replay asks for something else than is recorded at its step."""
    if operation.authority_kind == "adopted" and operation.previous is not None:
        operation = operation.previous  # that was proposed; this one was found
    proposed = intended.proposal_digest(operation.occurrence)
    if digest_of(operation) != proposed and operation.operation_key != operation_key(
        intended, operation.occurrence
    ):
        raise JournalMismatch(
            f"Step {operation.step} recorded {operation.action} on {operation.target_text} with other parameters."
        )


def params(operation: Operation) -> dict[str, Any]:
    """The committed parameters. Raises CannotUnseal where the row was altered."""
    found: dict[str, Any] = vault.unseal(params_place(operation.id), operation.sealed_params)
    return found
