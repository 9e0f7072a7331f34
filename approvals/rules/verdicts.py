"""What a version of rules says of a proposal, as one value; how two answers become one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from agentops.telemetry.logs import logger
from approvals.models import Policy, PolicyDecision
from approvals.states import Outcome, Risk
from operations.connectors.base import Action
from operations.models import Operation
from operations.sentences import money

from . import history
from .conditions import CannotEvaluate
from .evaluation import first_match, rules_of
from .shape import Rule, filled

log = logger(__name__)

MAX_LOWERINGS = 4  # of one proposal, by one rule after the other
_STRICTNESS = {Outcome.ALLOW: 0, Outcome.REQUIRE_APPROVAL: 1, Outcome.DENY: 2}


@dataclass(frozen=True)
class Inputs:
    """Everything that rules read of a proposal but its history, and the versions that are asked."""

    subject: history.Subject
    action: Action
    values: Mapping[str, int | str | bool]
    force: Policy | None
    log_only: Policy | None


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
    expires_hours: int | None = 24  # None: nobody's silence ends it
    cool_down_hours: int = field(default_factory=lambda: settings.AGENTOPS_COOL_DOWN_HOURS)
    clamp: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, int | str] = field(default_factory=dict)
    sentences: Mapping[str, str] | None = None
    policy: Policy | None = None
    input_digest: str = ""
    same_target: tuple[Operation, ...] = ()
    inputs: Inputs | None = None
    seen: Mapping[str, int | str | bool] = field(default_factory=dict, repr=False)  # all that the rules read
    earlier: "Verdict | None" = None  # before a rule lowered the proposal
    beside: "Verdict | None" = None  # what a log-only version would have said
    decision: PolicyDecision | None = None  # where it is on record already

    def asks_more_than(self, outcome: Outcome, required: int, group: str) -> bool:
        """Whether this asks for more than was given: a stricter outcome, another group, more people."""
        if _STRICTNESS[self.outcome] != _STRICTNESS[outcome]:
            return _STRICTNESS[self.outcome] > _STRICTNESS[outcome]
        return self.outcome == Outcome.REQUIRE_APPROVAL and (
            self.required > required or self.group not in ("", group)
        )


def say(
    policy: Policy | None, action: Action, values: Mapping[str, int | str | bool], others: int = 0
) -> Verdict:
    """What one version says of these values. `others`: how many more of the kind there are on the target."""
    verdict = _first_match(policy, action, values)
    if others and verdict.outcome == Outcome.ALLOW:
        verdict = replace(_by_default(policy, "same_target"), clamp=verdict.clamp)
    return verdict


def say_of_amount(
    policy: Policy, action: Action, values: Mapping[str, int | str | bool], others: int
) -> tuple[Verdict, int]:
    """The same with what its rules lower asked about anew, as `consider` does, but with the facts as they are."""
    verdict, amount = say(policy, action, values, others), int(values["operation.amount_minor"])
    for _ in range(MAX_LOWERINGS):
        less = lowers(verdict, {"amount_minor": amount})
        if not less:
            return verdict, amount
        amount = less["amount_minor"]
        values = {**values, "operation.amount_minor": amount}
        verdict = after(verdict, say(policy, action, values, others))
    return no_answer(policy, "lowered_too_often"), amount


def _first_match(policy: Policy | None, action: Action, values: Mapping[str, int | str | bool]) -> Verdict:
    if policy is None:
        return _by_default(None, "no_policy")
    try:
        rule = first_match(rules_of(policy, action), values)
    except CannotEvaluate as error:
        log.warning("policy_error", action=action.name, policy=policy.number, error=str(error))
        return no_answer(policy)
    return _by_default(policy, "no_rule") if rule is None else _of_rule(policy, rule, values)


def no_answer(policy: Policy | None, code: str = "policy_error") -> Verdict:
    return Verdict(Outcome.DENY, code, (code,), policy=policy)


def _by_default(policy: Policy | None, code: str) -> Verdict:
    """A person decides: no rule says otherwise."""
    return Verdict(
        Outcome.REQUIRE_APPROVAL,
        code,
        (code,),
        hold_seconds=settings.AGENTOPS_HOLD_SECONDS,
        expires_hours=settings.AGENTOPS_APPROVAL_HOURS,
        policy=policy,
    )


def _of_rule(policy: Policy, rule: Rule, values: Mapping[str, int | str | bool]) -> Verdict:
    currency = str(values.get("operation.currency", ""))
    shown = {
        name: money(value, currency)
        if name.endswith("_minor") and isinstance(value, int) and currency
        else value
        for name, value in rule.params.items()
    }
    hold, cool_down = rule.hold_seconds, rule.cool_down_hours
    return Verdict(
        rule.outcome,
        rule.code,
        (rule.code,),
        risk=rule.risk,
        required=rule.required,
        group=rule.group,
        hold_seconds=settings.AGENTOPS_HOLD_SECONDS if hold is None else hold,
        expires_hours=rule.expires_hours
        if "expires_hours" in rule.model_fields_set
        else settings.AGENTOPS_APPROVAL_HOURS,
        cool_down_hours=settings.AGENTOPS_COOL_DOWN_HOURS if cool_down is None else cool_down,
        clamp=rule.clamp,
        params=rule.params,
        sentences={language: filled(text, shown) for language, text in rule.sentences.items()} or None,
        policy=policy,
    )


def lowers(verdict: Verdict, given: Mapping[str, Any]) -> dict[str, int]:
    """What of these parameters is more than the rule lets through, with what it may be."""
    return {
        name: most
        for name, most in verdict.clamp.items()
        if isinstance(given.get(name), int) and given[name] > most
    }


def after(earlier: Verdict, now: Verdict) -> Verdict:
    """The verdict on what was lowered: the stricter of the two, with its reasons."""
    stricter = earlier if earlier.asks_more_than(now.outcome, now.required, now.group) else now
    return replace(
        now,
        outcome=stricter.outcome,
        rule=stricter.rule,
        codes=stricter.codes,
        risk=stricter.risk,
        required=max(earlier.required, now.required),
        group=stricter.group or now.group or earlier.group,
        hold_seconds=max(earlier.hold_seconds, now.hold_seconds),
        expires_hours=stricter.expires_hours,
        cool_down_hours=stricter.cool_down_hours,
        params=stricter.params,
        sentences=stricter.sentences,
        earlier=earlier,
    )
