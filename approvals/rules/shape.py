"""The shape of a rule, and the lint of a whole list: every fault with its rule, its field, its line and its column."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentops.kernel.problems import Fault as ProblemFault
from agentops.kernel.redaction import printable
from approvals.states import Outcome, Risk
from operations.connectors.base import Action

from . import conditions
from .checking import NO_CURRENCY, pins_currency
from .grammar import MAX_CHARS, MAX_NUMBER, parse
from .variables import CURRENCY, Kind, known_for

MAX_RULES = 50
Code = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$", max_length=60)]
_PRINTED = r"^[^\x00-\x1f\x7f]*$"
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_PRINTED)]
Value = Annotated[str, StringConstraints(max_length=120, pattern=_PRINTED)]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[A-Z]{2})?$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
_UNION_PARTS = ("int", "str", "constrained-int", "constrained-str")  # which of two types a fault was of
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Rule(BaseModel):
    """One rule. The first one of a list whose condition holds decides."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    code: Code = Field(
        description="its name, unique in the list: `refund.small`; it stands in records and reasons"
    )
    when: str = Field(description=f"the condition, in CEL, at most {MAX_CHARS} characters")
    outcome: Annotated[Outcome, Field(strict=False)] = Field(
        description="`allow`, `require_approval` or `deny`"
    )
    risk: Annotated[Risk, Field(strict=False)] = Field(
        Risk.ELEVATED, description="`routine`, `elevated` or `high`: what may be decided in bulk with what"
    )
    group: str = Field(
        "", max_length=40, pattern=_PRINTED, description="who must approve; empty: anybody who may"
    )
    required: int = Field(1, ge=1, le=9, description="how many people must approve")
    hold_seconds: int | None = Field(
        None,
        ge=0,
        le=7 * 86_400,
        description="how long an approved one waits before it is sent; null: the setting",
    )
    expires_hours: Annotated[int, Field(ge=1, le=8_760)] | None = Field(
        None, description="hours until nobody's answer ends the question; null: never; left out: the setting"
    )
    cool_down_hours: int | None = Field(
        None, ge=0, le=8_760, description="how long a rejected intent is not asked again on the same facts"
    )
    clamp: dict[Name, Annotated[int, Field(ge=1, le=MAX_NUMBER)]] = Field(
        default_factory=dict,
        description='the most that adjustable fields may hold: `{"amount_minor": 5000}`; more is lowered',
    )
    params: dict[Name, Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)] | Value] = Field(
        default_factory=dict,
        description="values for the sentences; a name that ends with `_minor` is shown as money",
    )
    sentences: dict[Language, Sentence] = Field(
        default_factory=dict,
        description="the reason in your own words, per language; `{name}` stands for a value of params",
    )


@dataclass(frozen=True)
class Fault:
    """What is wrong with a list of rules, and where. `rule` counts from 1; 0 is the list itself."""

    rule: int
    field: str
    line: int
    column: int
    code: str
    detail: str

    def __str__(self) -> str:
        if not self.rule:
            return self.detail
        place = f", line {self.line}, column {self.column}" if self.line else ""
        return f"rule {self.rule}, {self.field or 'whole'}{place}: {self.detail}"

    @property
    def stored(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def problem(self) -> ProblemFault:
        place = f"/rules/{self.rule - 1}/{self.field}".rstrip("/") if self.rule else "/rules"
        return {"pointer": place, "detail": str(self)}


def lint(action: Action, rules: Any) -> list[Fault]:
    """Every fault of a list of rules about `action`; empty where it may be published."""
    if not isinstance(rules, list):
        return [Fault(0, "", 0, 0, "no_list", "Rules are a list.")]
    if len(rules) > MAX_RULES:
        return [
            Fault(0, "", 0, 0, "too_many", f"There are at most {MAX_RULES} rules; these are {len(rules)}.")
        ]
    known, faults, codes = known_for(action), list[Fault](), dict[str, int]()
    always = 0
    for number, given in enumerate(rules, start=1):
        found = _shape(number, given)
        if isinstance(given, Mapping) and isinstance(given.get("when"), str):
            found += _condition(number, given["when"], known)
        faults += found
        if found or not isinstance(given, Mapping):
            continue
        rule = Rule.model_validate(given)
        faults += _sense(number, rule, action)
        if rule.code in codes:
            faults.append(_of(number, "code", "twice", f"Rule {codes[rule.code]} has this code already."))
        if always:
            detail = f"It is never reached: rule {always} matches everything."
            faults.append(_of(number, "when", "never_reached", detail))
        codes.setdefault(rule.code, number)
        always = always or (number if rule.when.strip() == "true" else 0)
    return faults


def _of(rule: int, field: str, code: str, detail: str) -> Fault:
    return Fault(rule, printable(field, 120), 0, 0, code, printable(detail, 500))


def _shape(number: int, given: Any) -> list[Fault]:
    try:
        Rule.model_validate(given)
    except ValidationError as error:
        return [
            _of(
                number,
                ".".join(str(part) for part in each["loc"] if part not in _UNION_PARTS),
                each["type"],
                each["msg"],
            )
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        ]
    return []


def _condition(number: int, text: str, known: Mapping[str, Kind]) -> list[Fault]:
    faults = []
    for fault in conditions.lint(text, known):
        before = text[: fault.at]
        line, column = before.count("\n") + 1, fault.at - (before.rfind("\n") + 1) + 1
        faults.append(Fault(number, "when", line, column, fault.code, fault.detail))
    return faults


def _sense(number: int, rule: Rule, action: Action) -> list[Fault]:
    """What the types cannot say."""
    faults = []
    for name in rule.clamp:
        if name not in action.adjustable:
            may = ", ".join(action.adjustable) or "nothing"
            detail = f"{action.name} lets {may} be lowered, and not {name}."
            faults.append(_of(number, "clamp", "not_adjustable", detail))
        elif name.endswith("_minor") and not pins_currency(parse(rule.when)):
            detail = f'{name} of which currency? Say it in the condition: {CURRENCY} == "EUR" && …'
            faults.append(_of(number, "clamp", NO_CURRENCY, detail))
    if rule.clamp and rule.outcome == Outcome.DENY:
        faults.append(_of(number, "clamp", "denied", "What is denied is not lowered."))
    for language, sentence in rule.sentences.items():
        for name in sorted(set(_PLACEHOLDER.findall(sentence)) - rule.params.keys()):
            detail = f"{{{name}}} has no value in params."
            faults.append(_of(number, f"sentences.{language}", "no_value", detail))
    return faults


def read(text: str) -> Any:
    """Rules as somebody has written them down, in JSON. Raises ValueError with the place."""
    try:
        return json.loads(text, parse_float=_no_float, object_pairs_hook=_each_name_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("It is nested too deep.") from None


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last of two would decide, and whoever reads the file may look at the first."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{name!r} stands twice in one rule.")
        fields[name] = value
    return fields


def _no_float(text: str) -> Any:
    raise ValueError(f"{text} is a decimal. Money is counted in minor units: write 5000 for 50.00.")


def filled(sentence: str, values: Mapping[str, object]) -> str:
    """A tenant's sentence with its values; what has none stays as it is written."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found.group(1), found.group())), sentence)
