"""Policy: what a tenant's published rules say of a proposal. The first match decides, no match asks a person, no answer denies."""

import unicodedata
from contextlib import suppress
from dataclasses import replace

from django.db import transaction

from agentops.kernel import sealed
from agentops.kernel.canonical import NotCanonical, digest
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import Place
from agentops.sdk.agents import Agent
from agentops.telemetry.logs import logger
from agentops.tenancy import vault
from agentops.tenancy.models import Tenant
from operations.connectors.base import Action, Facts
from operations.connectors.registry import ACTIONS
from operations.models import Connection, Operation
from operations.services import Intended, lower, params
from runs.models import AgentRun

from .models import Policy, PolicyDecision
from .rules import history
from .rules.conditions import CannotEvaluate
from .rules.evaluation import rules_of
from .rules.variables import SAME_TARGET
from .rules.verdicts import MAX_LOWERINGS, Inputs, Verdict, after, lowers, no_answer, say
from .states import Outcome

__all__ = ["Verdict", "consider", "evaluate", "published"]

log = logger(__name__)


class Moved(Exception):
    """Under the lock other operations are counted than before, and rules want less of this one: it is begun anew."""


def published(tenant_id: int, agent: Agent) -> str:
    """The digest of the rules that decide about what `agent` proposes, as they are published now."""
    actions = sorted({action for tool in agent.tools for action in tool.proposes})
    newest = (
        Policy.objects.filter(
            tenant_id=tenant_id, action__in=actions, published_at__isnull=False, log_only=False
        )
        .order_by("action", "-number")
        .distinct("action")
    )
    return digest("policies", [[policy.action, policy.number, policy.digest] for policy in newest])


def in_force(tenant_id: int, action: str) -> tuple[Policy | None, Policy | None]:
    """The version that decides, and a newer one that only records what it would decide."""
    rows = Policy.objects.filter(tenant_id=tenant_id, action=action, published_at__isnull=False)
    newest = {policy.log_only: policy for policy in rows.order_by("log_only", "-number").distinct("log_only")}
    force, other = newest.get(False), newest.get(True)
    return force, other if other and (force is None or other.number > force.number) else None


def consider(run: AgentRun, intended: Intended) -> tuple[Intended, Verdict]:
    """What rules say of an intent whose facts are read. What they lower is looked at and asked about anew.

    The stricter of what was said decides in the end. Call it before any lock is taken. Raises CheckFailed.
    """
    verdict = evaluate(run, intended)
    for _ in range(MAX_LOWERINGS):
        less = lowers(verdict, intended.params)
        if not less:
            return intended, verdict
        intended = lower(intended, less, verdict.rule)
        verdict = after(verdict, evaluate(run, intended))
    return intended, replace(
        no_answer(verdict.policy, "lowered_too_often"), inputs=verdict.inputs, seen=verdict.seen
    )


def evaluate(run: AgentRun, intended: Intended) -> Verdict:
    """What the tenant's published rules say now of what a run intends. Reads; call it before any lock is taken."""
    target = f"{intended.action.target_type}:{intended.target}"
    return _look(
        _inputs(
            run,
            intended.tenant,
            intended.action,
            target,
            actor=intended.actor,
            reference=intended.reference,
            money=(intended.amount_minor, intended.currency),
            connection=intended.connection,
            facts=intended.facts,
        )
    )


def evaluate_again(operation: Operation, facts: Facts) -> Verdict:
    """The same for an operation that is recorded already.

    Rules that would lower it by now do not permit it as it stands, and nothing of it may be changed any more: they deny.
    """
    verdict = _look(
        _inputs(
            operation.run,
            operation.tenant,
            ACTIONS[operation.action],
            operation.target_text,
            actor=operation.actor,
            reference=operation.reference,
            money=(operation.amount_minor, operation.currency),
            connection=operation.connection,
            facts=facts,
            before=operation,
        )
    )
    if lowers(verdict, params(operation) if verdict.clamp else {}):
        codes = ("policy_lowers", *verdict.codes)
        verdict = replace(verdict, outcome=Outcome.DENY, rule="policy_lowers", codes=codes)
    return verdict


def evaluate_for_dispatch(operation: Operation, facts: Facts) -> Verdict:
    """The fresh look before anything is sent; it is put on record whatever comes of it."""
    verdict = evaluate_again(operation, facts)
    with transaction.atomic():
        return replace(verdict, decision=_remembered(operation, verdict, keep_input=False))


def counted_under_lock(operation: Operation, verdict: Verdict) -> Verdict:
    """The verdict on a freshly recorded, locked operation, with its history counted where nobody else can add to it.

    What is evaluated here are conditions without loops over values that are read already: microseconds. Raises Moved.
    """
    inputs = verdict.inputs
    if inputs is None:
        return verdict
    windows, counts_target = _counts(inputs.force, inputs.action)  # one that only records need not be exact
    if windows:
        history.take_place(operation)
    elif not counts_target and not (inputs.action.guards_target and verdict.outcome == Outcome.ALLOW):
        return verdict  # and what is on the target is counted under the target's own lock
    subject = replace(inputs.subject, before=operation)
    again = _look(replace(inputs, subject=subject))
    if verdict.earlier is not None:
        again = after(verdict.earlier, again)
    if lowers(again, params(operation) if again.clamp else {}):
        raise Moved
    return again


def remember(operation: Operation, verdict: Verdict) -> PolicyDecision:
    """Record what policy said about an operation, in the transaction that acts on it; once for each look."""
    return verdict.decision or _remembered(operation, verdict, keep_input=True)


def input_place(decision: PolicyDecision) -> Place:
    return Place("approvals_policydecision", str(decision.id), "input")


def _inputs(
    run: AgentRun,
    tenant: Tenant,
    action: Action,
    target: str,
    *,
    actor: str,
    reference: str,
    money: tuple[int | None, str],
    connection: Connection,
    facts: Facts,
    before: Operation | None = None,
) -> Inputs:
    kind, _, name = actor.partition(":")
    amount_minor, currency = money
    force, log_only = in_force(tenant.id, action.name)
    values: dict[str, int | str | bool] = {
        "operation.action": action.name,
        "operation.version": action.version,
        "operation.target": target,
        "operation.target_type": action.target_type,
        "operation.reference": reference,
        "operation.amount_minor": amount_minor or 0,
        "operation.currency": currency,
        "operation.connection": connection.name,
        "operation.mode": connection.mode,
        "actor.kind": kind,
        "actor.id": name,
        "tenant.slug": tenant.slug,
        "run.agent": run.agent,
        "run.channel": run.channel,
        "run.is_child": run.parent_id is not None,
        **{f"target.{fact.name}": _normal(fact.value) for fact in facts.facts},
    }
    subject = history.Subject(
        tenant.id, tenant.timezone, action.name, target, actor, run.agent, currency, before
    )
    return Inputs(subject, action, values, force, log_only)


def _normal(value: int | str | bool) -> int | str | bool:
    """Text in the one form that conditions and records have it in."""
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def _counts(policy: Policy | None, action: Action) -> tuple[frozenset[tuple[str, str]], bool]:
    """What of the past a version counts, and whether it counts what is on the target; nothing where it has no answer."""
    with suppress(CannotEvaluate):
        if policy is not None:
            rules = rules_of(policy, action)
            return rules.windows, rules.counts_target
    return frozenset(), False


def _look(inputs: Inputs) -> Verdict:
    """One look at the rows, and what the versions say of it."""
    action, force, silent = inputs.action, inputs.force, inputs.log_only
    asked = [_counts(policy, action) for policy in (force, silent)]
    same = history.same_target(inputs.subject) if action.guards_target else ()
    counts_target = any(counts for _, counts in asked)
    others = history.count_same_target(inputs.subject) if counts_target else len(same)
    values = {**inputs.values, SAME_TARGET: others}
    try:
        values |= history.count(inputs.subject, frozenset().union(*(windows for windows, _ in asked)))
        found = digest("policy-input", values)
    except (CannotEvaluate, NotCanonical) as error:
        log.warning("policy_error", action=action.name, error=str(error))
        return replace(no_answer(force), inputs=inputs)
    verdict = say(force, action, values, len(same))
    beside = None
    if silent is not None:
        beside = replace(say(silent, action, values, len(same)), input_digest=found)
    return replace(verdict, input_digest=found, same_target=same, inputs=inputs, seen=values, beside=beside)


def _remembered(operation: Operation, verdict: Verdict, *, keep_input: bool) -> PolicyDecision:
    for other in (verdict.earlier, verdict.beside):
        if other is not None:
            _remembered(operation, other, keep_input=False)
    decision = PolicyDecision(
        id=uuid7(),
        tenant_id=operation.tenant_id,
        operation=operation,
        policy=verdict.policy,
        rule=verdict.rule,
        outcome=verdict.outcome,
        risk=verdict.risk,
        codes=list(verdict.codes),
        input_digest=verdict.input_digest,
        log_only=verdict.policy is not None and verdict.policy.log_only,
    )
    if keep_input and verdict.seen:
        key = vault.opened(operation.data_key_id)
        decision.sealed_input = sealed.seal_json(key, input_place(decision), dict(verdict.seen))
    decision.save(force_insert=True)
    return decision
