"""A version tried on the past: which decisions would have been others. Nothing is written, nobody is asked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Exists, OuterRef

from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from approvals.models import Policy, PolicyDecision
from approvals.policy import input_place
from approvals.states import Outcome
from operations.connectors.registry import ACTIONS
from operations.models import Operation

from . import history
from .conditions import CannotEvaluate
from .evaluation import rules_of
from .variables import SAME_TARGET
from .verdicts import say_of_amount

AMOUNT = "operation.amount_minor"
LIMIT = 500


@dataclass(frozen=True)
class Said:
    """What policy has said, or would have, as far as it matters for what happens."""

    outcome: str
    rule: str
    required: int
    group: str
    amount_minor: int

    @property
    def effect(self) -> tuple[Any, ...]:
        """The same effect by another rule is no difference."""
        asks = self.outcome == Outcome.REQUIRE_APPROVAL
        return self.outcome, self.amount_minor, (self.required, self.group) if asks else None


@dataclass(frozen=True)
class Difference:
    operation: Operation
    was: Said
    would: Said


@dataclass
class Trial:
    """`unreadable`: what those rules read then cannot be opened any more, or was not kept."""

    policy: Policy
    looked_at: int = 0
    unreadable: int = 0
    differences: list[Difference] = field(default_factory=list)


def over_the_past(version: Policy, *, limit: int = LIMIT) -> Trial:
    """Run a version over what was proposed before, newest first, as it was proposed and with the facts of then.

    The past that it counts is today's record of it: what was open then and has ended without effect since is not counted.
    """
    done = Trial(version)
    for decision in _past(version, limit):
        done.looked_at += 1
        try:
            seen = vault.unseal(input_place(decision), bytes(decision.sealed_input or b""))
        except CannotUnseal:
            done.unreadable += 1
            continue
        was, would = _was(decision, seen), _would(version, decision, seen)
        if was.effect != would.effect:
            done.differences.append(Difference(decision.operation, was, would))
    return done


def _past(version: Policy, limit: int) -> Iterator[PolicyDecision]:
    """The first look at each proposal; what a reviewer made of it afterwards is no question to rules."""
    looks = PolicyDecision.objects.filter(sealed_input__isnull=False, log_only=False)
    earlier = looks.filter(operation=OuterRef("operation"), pk__lt=OuterRef("pk"))
    rows = looks.filter(~Exists(earlier), tenant_id=version.tenant_id, operation__action=version.action)
    yield from rows.select_related("operation__tenant", "operation__run", "policy").order_by("-id")[:limit]


def _was(decision: PolicyDecision, seen: Mapping[str, Any]) -> Said:
    rules = decision.policy.rules if decision.policy else []
    rule: Mapping[str, Any] = next((each for each in rules if each.get("code") == decision.rule), {})
    return Said(
        decision.outcome, decision.rule, rule.get("required", 1), rule.get("group", ""), int(seen[AMOUNT])
    )


def _would(version: Policy, decision: PolicyDecision, seen: Mapping[str, Any]) -> Said:
    operation, action = decision.operation, ACTIONS[version.action]
    asked = [each["from"] for each in operation.lowered if each["field"] == "amount_minor"]
    values = {**seen, AMOUNT: asked[0] if asked else seen[AMOUNT]}
    missing = rules_of(version, action).windows - _counted(seen)
    subject = history.Subject(
        operation.tenant_id,
        operation.tenant.timezone,
        operation.action,
        operation.target_text,
        operation.actor,
        operation.run.agent,
        operation.currency,
        before=operation,
    )
    try:
        values |= history.count(subject, missing, at=decision.at)
    except CannotEvaluate:
        return Said(Outcome.DENY, "policy_error", 1, "", int(values[AMOUNT]))
    others = int(seen.get(SAME_TARGET, 0)) if action.guards_target else 0
    verdict, amount = say_of_amount(version, action, values, others)
    return Said(verdict.outcome, verdict.rule, verdict.required, verdict.group, amount)


def _counted(seen: Mapping[str, Any]) -> set[tuple[str, str]]:
    paths = [path.split(".") for path in seen if path.startswith("history.")]
    return {(path[1], path[2]) for path in paths if len(path) == 4}
