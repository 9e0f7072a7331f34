"""What a proposal rests on: facts with their guards, the rule that asked, the release, and who asked by which right."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentops.kernel.clock import now
from operations.connectors.base import Fact, Facts, Field, Guard
from operations.models import Operation
from runs.models import AgentRun
from runs.services import requesters_of

from . import queries
from .models import Approval
from .policy import Verdict
from .rights import scopes_of

type Change = dict[str, Any]  # {name, kind, then, now}; kind: money, text, rule


def grounds_of(run: AgentRun, operation: Operation, verdict: Verdict, facts: Facts) -> dict[str, Any]:
    at = now().isoformat()
    return {
        "facts": [
            {
                "name": fact.name,
                "value": fact.value,
                "source": fact.source,
                "at": at,
                "guard": {"relation": fact.guard.relation, "bound": fact.guard.bound} if fact.guard else None,
            }
            for fact in facts.facts
        ],
        "policy": {
            "number": verdict.policy.number if verdict.policy else None,
            "rule": verdict.rule,
            "outcome": verdict.outcome,
            "codes": list(verdict.codes),
        },
        "release": str(run.release_id),
        "action_version": operation.action_version,
        "requested_by": requesters_of(run),
        "rights": scopes_of(run),
    }


def facts_as_asked(approval: Approval) -> Facts:
    """The facts that an approval rests on, as they were read then: no system is asked for them."""
    facts = [
        Fact(fact["name"], fact["value"], fact["source"], Guard(**fact["guard"]) if fact["guard"] else None)
        for fact in queries.grounds(approval)["facts"]
    ]
    return Facts(facts, [Field(**field) for field in queries.proposal(approval)["fields"]])


def moved_since(approval: Approval, operation: Operation, facts: Facts, verdict: Verdict) -> list[Change]:
    """What is otherwise now than when it was asked, whether or not it matters."""
    then = queries.grounds(approval)
    values = {fact["name"]: fact["value"] for fact in then["facts"]}
    present = {fact.name: fact.value for fact in facts.facts}
    changes = _changes(values, present)
    rule = then["policy"]
    changes += _changes(
        {"rule": rule["rule"], "policy": rule["number"], "release": then["release"]},
        {
            "rule": verdict.rule,
            "policy": verdict.policy.number if verdict.policy else None,
            "release": str(operation.run.release_id),
        },
        kind="rule",
    )
    return changes


def difference(earlier: Approval, later: Approval) -> list[Change]:
    """Everything that a yes rests on and that is not as it was: parameters, facts, and what the rules ask for."""
    return _changes(_values(earlier), _values(later)) + _changes(_rules(earlier), _rules(later), kind="rule")


def _values(approval: Approval) -> dict[str, Any]:
    facts: Sequence[Mapping[str, Any]] = queries.grounds(approval)["facts"]
    return {**queries.proposal(approval)["params"], **{fact["name"]: fact["value"] for fact in facts}}


def _rules(approval: Approval) -> dict[str, Any]:
    then = queries.grounds(approval)
    return {
        "rule": then["policy"]["rule"],
        "action_version": then["action_version"],
        "people": approval.required,
        "group": approval.group or None,
    }


def _changes(then: Mapping[str, Any], present: Mapping[str, Any], kind: str = "") -> list[Change]:
    return [
        {
            "name": name,
            "kind": kind or ("money" if name.endswith("_minor") else "text"),
            "then": then.get(name),
            "now": present.get(name),
        }
        for name in {**present, **then}
        if then.get(name) != present.get(name)
    ]
