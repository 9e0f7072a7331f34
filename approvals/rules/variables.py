"""What a condition may speak of, each with its type: the one table that lint, evaluation and docs/policy.md are made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from operations.connectors.base import Action


class Kind(Enum):
    MONEY = "money"  # an integer of minor units, in the currency of the proposal
    NUMBER = "number"  # an integer
    TEXT = "text"
    FLAG = "true or false"


@dataclass(frozen=True)
class Described:
    kind: Kind
    words: str


CURRENCY = "operation.currency"
SAME_TARGET = "history.same_target"
PLAIN: Mapping[str, Described] = {
    "operation.action": Described(Kind.TEXT, "what is proposed: `refund.create`"),
    "operation.version": Described(Kind.NUMBER, "the action's version"),
    "operation.target": Described(Kind.TEXT, "what it would change: `order:A-1001`"),
    "operation.target_type": Described(Kind.TEXT, "the part before the colon: `order`"),
    "operation.reference": Described(Kind.TEXT, "what tells two honest requests apart: a return number"),
    "operation.amount_minor": Described(
        Kind.MONEY, "the amount, 5000 for 50.00; 0 where the action has none"
    ),
    CURRENCY: Described(Kind.TEXT, "its currency, `EUR`; empty where the action has no amount"),
    "operation.connection": Described(Kind.TEXT, "the name of the connection that would send it"),
    "operation.mode": Described(Kind.TEXT, "that connection's mode: `test` or `live`"),
    "actor.kind": Described(Kind.TEXT, "for whom the run acts: `customer`, `user` or `tenant`"),
    "actor.id": Described(Kind.TEXT, "which one: `C-1001`"),
    "tenant.slug": Described(Kind.TEXT, "your tenant's short name"),
    "run.agent": Described(Kind.TEXT, "the agent that proposes"),
    "run.channel": Described(Kind.TEXT, "how its run was started: `rest`, `cli`, `console`, …"),
    "run.is_child": Described(Kind.FLAG, "whether another run started it"),
    SAME_TARGET: Described(
        Kind.NUMBER, "other operations of this action on this target: alive, or done within 30 days"
    ),
}
# Whose operations of the same action are counted, and since when.
SCOPES: Mapping[str, str] = {
    "target": "this target",
    "customer": "whom this run acts for",
    "agent": "this agent, for anybody",
    "tenant": "the whole tenant",
}
WINDOWS: Mapping[str, str] = {
    "last_hour": "the last 60 minutes",
    "last_24h": "the last 24 hours",
    "last_7d": "the last 7 days",
    "last_30d": "the last 30 days",
    "today": "the day in the tenant's time zone",
}
MEASURES: Mapping[str, Described] = {
    "count": Described(Kind.NUMBER, "how many"),
    "sum_minor": Described(Kind.MONEY, "their amounts together, of those in the proposal's currency"),
}
HISTORY: Mapping[str, Described] = {
    f"history.{scope}.{window}.{measure}": Described(said.kind, f"{said.words}: {whose}, {since}")
    for scope, whose in SCOPES.items()
    for window, since in WINDOWS.items()
    for measure, said in MEASURES.items()
}
_KINDS: Mapping[type, Kind] = {int: Kind.NUMBER, str: Kind.TEXT, bool: Kind.FLAG}
_TYPES: Mapping[Kind, type] = {Kind.MONEY: int, Kind.NUMBER: int, Kind.TEXT: str, Kind.FLAG: bool}


def of_fact(name: str, holds: type) -> Kind:
    return Kind.MONEY if name.endswith("_minor") else _KINDS[holds]


def known_for(action: Action) -> dict[str, Kind]:
    """Every variable of a rule about `action`: the common ones, and the facts that its connector reads."""
    common = {path: said.kind for path, said in {**PLAIN, **HISTORY}.items()}
    return common | {f"target.{name}": of_fact(name, holds) for name, holds in action.facts.items()}


def fits(kind: Kind, value: object) -> bool:
    """Whether a value is of that kind exactly: no float is a number here, and neither is a yes or no."""
    return type(value) is _TYPES[kind] and (not isinstance(value, int) or -(2**63) <= value < 2**63)
