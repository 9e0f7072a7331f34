"""Policy: ordered rules in CEL over typed variables; the first match decides, no match asks a person."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import cel
from django.conf import settings

from agentops.kernel.canonical import digest
from agentops.kernel.clock import now
from agentops.kernel.ids import uuid7
from agentops.sdk.agents import Agent
from agentops.telemetry.logs import logger
from operations.connectors.base import Action, Facts
from operations.connectors.registry import ACTIONS
from operations.models import Operation
from operations.states import FINAL, OperationStatus

from .models import Policy, PolicyDecision
from .states import Outcome, Risk

log = logger(__name__)

MAX_EXPRESSION_CHARS = 1_000
_STRICTNESS = {Outcome.ALLOW: 0, Outcome.REQUIRE_APPROVAL: 1, Outcome.DENY: 2}


@dataclass(frozen=True)
class Verdict:
    """What policy says. `sentences` are the tenant's own words per language, beside the code."""

    outcome: Outcome
    rule: str
    codes: tuple[str, ...]
    risk: Risk = Risk.ELEVATED
    required: int = 1
    group: str = ""
    hold_seconds: int = 0
    expires_hours: int = 24
    cool_down_hours: int = field(default_factory=lambda: settings.AGENTOPS_COOL_DOWN_HOURS)
    sentences: Mapping[str, str] | None = None
    policy: Policy | None = None
    input_digest: str = ""
    same_target: tuple[Operation, ...] = ()

    def asks_more_than(self, outcome: Outcome, required: int, group: str) -> bool:
        """Whether this asks for more than was given: a stricter outcome, another group, more people."""
        if _STRICTNESS[self.outcome] != _STRICTNESS[outcome]:
            return _STRICTNESS[self.outcome] > _STRICTNESS[outcome]
        return self.outcome == Outcome.REQUIRE_APPROVAL and (
            self.required > required or self.group not in ("", group)
        )


@functools.lru_cache(maxsize=1_024)
def _compiled(expression: str) -> cel.Program:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"longer than {MAX_EXPRESSION_CHARS} characters")
    return cel.compile(expression)


def lint(rules: Any) -> list[str]:
    """Every fault of a list of rules, with its place; empty where it may be published."""
    faults = []
    for place, rule in enumerate(rules if isinstance(rules, list) else []):
        try:
            _compiled(rule["when"])
            Outcome(rule["outcome"])
            Risk(rule.get("risk", Risk.ELEVATED))
            if not isinstance(rule["code"], str) or not rule["code"]:
                raise ValueError("code must be a word")
        except (KeyError, ValueError) as error:
            faults.append(f"rule {place + 1}: {error}")
    return faults if isinstance(rules, list) else ["rules must be a list"]


def published(tenant_id: int, agent: Agent) -> str:
    """The digest of the rules that decide about what `agent` proposes, as they are published now."""
    actions = sorted({action for tool in agent.tools for action in tool.proposes})
    newest = (
        Policy.objects.filter(tenant_id=tenant_id, action__in=actions, published_at__isnull=False)
        .order_by("action", "-number")
        .distinct("action")
    )
    return digest("policies", [[policy.action, policy.number, policy.rules] for policy in newest])


def evaluate(
    *,
    tenant_id: int,
    tenant: str,
    actor: str,
    agent: str,
    action: Action,
    target: str,
    reference: str,
    amount_minor: int | None,
    currency: str,
    facts: Facts,
    but: Operation | None = None,
) -> Verdict:
    """What the tenant's published rules say now. Reads; call it before any lock is taken."""
    same_target = _same_target(tenant_id, action, target, but) if action.guards_target else ()
    variables = {
        "operation": {
            "action": action.name,
            "target": target,
            "reference": reference,
            "amount_minor": amount_minor if amount_minor is not None else 0,
            "currency": currency,
        },
        "actor": dict(zip(("kind", "id"), actor.partition(":")[::2], strict=True)),
        "target": {fact.name: fact.value for fact in facts.facts},
        "tenant": {"slug": tenant},
        "run": {"agent": agent},
        "history": {"same_target": len(same_target)},
    }
    verdict = _first_match(tenant_id, action, variables)
    if same_target and verdict.outcome == Outcome.ALLOW:
        verdict = Verdict(
            Outcome.REQUIRE_APPROVAL,
            "same_target",
            ("same_target",),
            hold_seconds=settings.AGENTOPS_HOLD_SECONDS,
            expires_hours=settings.AGENTOPS_APPROVAL_HOURS,
            policy=verdict.policy,
            input_digest=verdict.input_digest,
        )
    return replace(verdict, same_target=same_target)


def _same_target(tenant_id: int, action: Action, target: str, but: Operation | None) -> tuple[Operation, ...]:
    """The softer guard: other live operations of that action on that target, or recent ones that succeeded."""
    kind, _, name = target.partition(":")
    others = Operation.objects.filter(
        tenant_id=tenant_id, action=action.name, target_type=kind, target_name=name
    )
    if but is not None:
        others = others.exclude(pk=but.pk)
    live = others.exclude(status__in=FINAL)
    since = now() - timedelta(days=settings.AGENTOPS_SAME_TARGET_DAYS)
    done = others.filter(
        status=OperationStatus.SUCCEEDED, updated_at__gt=since
    )  # its last move was to succeed
    if but is not None:  # of two that wait, only the later one is warned about the earlier
        live = live.filter(created_at__lt=but.created_at)
        done = done.filter(created_at__lt=but.created_at)
    return tuple(live.order_by("created_at")[:5]) + tuple(done.order_by("created_at")[:5])


def _first_match(tenant_id: int, action: Action, variables: dict[str, Any]) -> Verdict:
    policy = (
        Policy.objects.filter(tenant_id=tenant_id, action=action.name, published_at__isnull=False)
        .order_by("-number")
        .first()
    )
    hold, hours = settings.AGENTOPS_HOLD_SECONDS, settings.AGENTOPS_APPROVAL_HOURS
    input_digest = digest("policy-input", variables)
    if policy is None:
        return Verdict(
            Outcome.REQUIRE_APPROVAL,
            "no_policy",
            ("no_policy",),
            hold_seconds=hold,
            expires_hours=hours,
            input_digest=input_digest,
        )
    for rule in policy.rules:
        try:
            matched = _compiled(rule["when"]).execute(variables)
            if matched is not True and matched is not False:
                raise TypeError("a condition must be true or false")
        except Exception as error:  # what cannot be evaluated denies
            log.warning("policy_error", rule=rule.get("code"), action=action.name, error=type(error).__name__)
            return Verdict(
                Outcome.DENY, "policy_error", ("policy_error",), policy=policy, input_digest=input_digest
            )
        if matched:
            return Verdict(
                Outcome(rule["outcome"]),
                rule["code"],
                (rule["code"],),
                risk=Risk(rule.get("risk", Risk.ELEVATED)),
                required=int(rule.get("required", 1)),
                group=rule.get("group", ""),
                hold_seconds=int(rule.get("hold_seconds", hold)),
                expires_hours=int(rule.get("expires_hours", hours)),
                cool_down_hours=int(rule.get("cool_down_hours", settings.AGENTOPS_COOL_DOWN_HOURS)),
                sentences=rule.get("sentences"),
                policy=policy,
                input_digest=input_digest,
            )
    return Verdict(
        Outcome.REQUIRE_APPROVAL,
        "no_rule",
        ("no_rule",),
        hold_seconds=hold,
        expires_hours=hours,
        policy=policy,
        input_digest=input_digest,
    )


def evaluate_again(operation: Operation, facts: Facts) -> Verdict:
    """The same for an operation that is recorded already."""
    return evaluate(
        tenant_id=operation.tenant_id,
        tenant=operation.tenant.slug,
        actor=operation.actor,
        agent=operation.run.agent,
        action=ACTIONS[operation.action],
        target=operation.target_text,
        reference=operation.reference,
        amount_minor=operation.amount_minor,
        currency=operation.currency,
        facts=facts,
        but=operation,
    )


def remember(operation: Operation, verdict: Verdict) -> PolicyDecision:
    """Record what policy said about an operation, in the transaction that acts on it."""
    return PolicyDecision.objects.create(
        id=uuid7(),
        tenant_id=operation.tenant_id,
        operation=operation,
        policy=verdict.policy,
        rule=verdict.rule,
        outcome=verdict.outcome,
        risk=verdict.risk,
        codes=list(verdict.codes),
        input_digest=verdict.input_digest,
    )
