"""A list of rules made ready once, and the first one that holds. Reads nothing but the values that it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from approvals.models import Policy, digest_of_rules
from operations.connectors.base import Action

from .conditions import CannotEvaluate, Condition, context_of, holds, ready
from .grammar import Faulty
from .shape import Rule
from .variables import HISTORY, SAME_TARGET, Kind, known_for

MAX_READY = 1_024  # lists of rules that are kept ready


@dataclass(frozen=True)
class Ruleset:
    """The rules of one version. One that could not be made ready denies where it is reached: None stands for it."""

    entries: Sequence[tuple[Rule, Condition] | None]
    known: Mapping[str, Kind]
    reads: frozenset[str]
    asks_for: frozenset[str]

    @property
    def windows(self) -> frozenset[tuple[str, str]]:
        """What of the past it needs to know: whose operations, since when."""
        paths = (path.split(".") for path in self.reads if path in HISTORY)
        return frozenset((scope, window) for _, scope, window, _ in paths)

    @property
    def counts_target(self) -> bool:
        return SAME_TARGET in self.reads


_ready: dict[tuple[str, str, int], Ruleset] = {}


def rules_of(version: Policy, action: Action) -> Ruleset:
    """The rules of a version, made ready once in a process. Raises CannotEvaluate where its row was altered."""
    name = (version.digest, action.name, action.version)
    found = _ready.get(name)
    if found is None:
        if digest_of_rules(version.rules) != version.digest:
            raise CannotEvaluate("its rules are not those that were published")
        if len(_ready) >= MAX_READY:
            _ready.clear()
        found = _ready[name] = ruleset(action, version.rules)
    return found


def ruleset(action: Action, rules: Sequence[Mapping[str, Any]]) -> Ruleset:
    known = known_for(action)
    entries: list[tuple[Rule, Condition] | None] = []
    for given in rules:
        try:
            rule = Rule.model_validate(given)
            if not rule.clamp.keys() <= set(action.adjustable):
                raise Faulty(0, "not_adjustable", "It lowers what may not be lowered.")
            entries.append((rule, ready(rule.when, known)))
        except (ValidationError, Faulty):
            entries.append(None)
    conditions = [entry[1] for entry in entries if entry is not None]
    return Ruleset(
        entries,
        known,
        frozenset().union(*(condition.reads for condition in conditions)),
        frozenset().union(*(condition.asks_for for condition in conditions)),
    )


def first_match(rules: Ruleset, values: Mapping[str, object]) -> Rule | None:
    """The rule that decides; None where none holds. Raises CannotEvaluate."""
    context = context_of(rules.reads, rules.asks_for, values, rules.known)
    for entry in rules.entries:
        if entry is None:
            raise CannotEvaluate("a rule that is none")
        rule, condition = entry
        if holds(condition, context):
            return rule
    return None
