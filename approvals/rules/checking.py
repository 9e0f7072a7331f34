"""The types of a condition: what is compared with what, which money is of which currency, and where a fault stands."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from .grammar import (
    METHODS,
    Binary,
    Call,
    Choice,
    Elements,
    Faulty,
    Literal,
    Many,
    Node,
    Unary,
    Variable,
)
from .variables import CURRENCY, Kind

_NUMBERS = (Kind.NUMBER, Kind.MONEY)
NO_CURRENCY = "no_currency"


@dataclass
class Checked:
    faults: list[Faulty] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)  # the paths whose values it needs
    asks_for: set[str] = field(default_factory=set)  # the paths of which it asks whether they are there


def check(condition: Node, known: Mapping[str, Kind]) -> Checked:
    """Every fault of a condition over variables of these kinds, and what it reads."""
    checker = _Checker(known)
    kind = checker.kind(condition, False)
    if kind not in (None, Kind.FLAG):
        checker.fault(condition, "not_a_condition", "A condition must be true or false.")
    return checker.found


def pins_currency(node: Node, op: str = "==") -> bool:
    """Whether this compares the proposal's currency with one that is named."""
    match node:
        case Binary(_, found, Variable(_, path), Literal(_, str())) if found == op:
            return path == CURRENCY
        case Binary(_, found, Literal(_, str()), Variable(_, path)) if found == op:
            return path == CURRENCY
        case Binary(_, "in", Variable(_, path), Elements()) if op == "==":
            return path == CURRENCY
        case Many(_, "&&", parts) if op == "==":
            return any(pins_currency(part) for part in parts)
        case Many(_, "||", parts) if op == "==":
            return all(pins_currency(part) for part in parts)
    return False


class _Checker:
    def __init__(self, known: Mapping[str, Kind]) -> None:
        self._known = known
        self.found = Checked()

    def fault(self, node: Node, code: str, detail: str) -> None:
        self.found.faults.append(Faulty(node.at, code, detail))

    def kind(self, node: Node, has_currency: bool) -> Kind | None:
        """The kind of a part, None where a fault in it leaves that open. `has_currency`: which money it is, is said."""
        match node:
            case Literal(_, value):
                return (
                    Kind.FLAG
                    if isinstance(value, bool)
                    else Kind.NUMBER
                    if isinstance(value, int)
                    else Kind.TEXT
                )
            case Variable():
                return self._variable(node)
            case Many(_, op, parts):
                pinned = any(pins_currency(part, "==" if op == "&&" else "!=") for part in parts)
                for part in parts:
                    self._want(part, has_currency or pinned, Kind.FLAG)
                return Kind.FLAG
            case Unary(_, op, operand):
                wanted = (Kind.FLAG,) if op == "!" else _NUMBERS
                return self._want(operand, has_currency, *wanted)
            case Choice(_, condition, yes, no):
                self._want(condition, has_currency, Kind.FLAG)
                kinds = self.kind(yes, has_currency or pins_currency(condition)), self.kind(no, has_currency)
                return self._alike(node, *kinds, has_currency)
            case Binary(_, "in", left, right):
                return self._among(node, left, right, has_currency)
            case Binary():
                return self._binary(node, has_currency)
            case Call():
                return self._call(node, has_currency)
        self.fault(node, "unexpected", "A list stands only after `in`.")
        return None

    def _want(self, node: Node, has_currency: bool, *kinds: Kind) -> Kind | None:
        found = self.kind(node, has_currency)
        if found is not None and found not in kinds:
            self.fault(node, "wrong_type", f"Here a {kinds[0].value} is wanted, and this is a {found.value}.")
            return None
        return found

    def _variable(self, node: Variable) -> Kind | None:
        found = self._known.get(node.path)
        if found is None:
            near = difflib.get_close_matches(node.path, self._known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            self.fault(node, "unknown_variable", f"There is no {node.path} here{hint}")
            return None
        self.found.reads.add(node.path)
        return found

    def _alike(self, node: Node, left: Kind | None, right: Kind | None, has_currency: bool) -> Kind | None:
        """The kind of two that are set against each other."""
        if left is None or right is None:
            return None
        if left == right:
            return left
        if {left, right} != set(_NUMBERS):
            self.fault(
                node, "wrong_type", f"A {left.value} is set against a {right.value}; they are never equal."
            )
            return None
        if not has_currency and not _is_zero(node):
            detail = f'Of which currency? Say it beside the amount: {CURRENCY} == "EUR" && …'
            self.fault(node, NO_CURRENCY, detail)
        return Kind.MONEY

    def _binary(self, node: Binary, has_currency: bool) -> Kind | None:
        sides = self.kind(node.left, has_currency), self.kind(node.right, has_currency)
        if node.op in ("==", "!="):
            self._alike(node, *sides, has_currency)
            return Kind.FLAG
        for side, kind in zip((node.left, node.right), sides, strict=True):
            if kind is not None and kind not in _NUMBERS:
                self.fault(side, "wrong_type", f"{node.op} is between numbers, and this is a {kind.value}.")
                return None
        match node.op:
            case "+" | "-":
                return self._alike(node, *sides, has_currency)
            case "*" | "/" | "%":
                return self._scaled(node, *sides)
        self._alike(node, *sides, has_currency)
        return Kind.FLAG

    def _scaled(self, node: Binary, left: Kind | None, right: Kind | None) -> Kind | None:
        if left is None or right is None:
            return None
        if node.op == "*" and left == right == Kind.MONEY:
            self.fault(node, "wrong_type", "Money times money is nothing.")
            return None
        if node.op != "*" and right == Kind.MONEY:
            return Kind.NUMBER
        return Kind.MONEY if Kind.MONEY in (left, right) else Kind.NUMBER

    def _among(self, node: Binary, left: Node, right: Node, has_currency: bool) -> Kind | None:
        kind = self.kind(left, has_currency)
        if not isinstance(right, Elements) or not right.items:
            self.fault(right, "wrong_type", 'After `in` stands a list: ["EUR", "USD"].')
            return Kind.FLAG
        for item in right.items:
            self._alike(item, kind, self.kind(item, has_currency), has_currency)
        return Kind.FLAG

    def _call(self, node: Call, has_currency: bool) -> Kind | None:
        wanted = 2 if node.name in METHODS else 1
        if len(node.args) != wanted:
            self.fault(node, "wrong_type", f"{node.name}() takes one thing.")
            return None
        if node.name == "has":
            (asked,) = node.args
            if not isinstance(asked, Variable) or not asked.path.startswith("target."):
                self.fault(node, "wrong_type", "has() asks of one of target's facts whether it is known.")
            elif self._variable(asked) is not None:
                self.found.reads.discard(asked.path)
                self.found.asks_for.add(asked.path)
            return Kind.FLAG
        for each in node.args:
            self._want(each, has_currency, Kind.TEXT)
        return Kind.NUMBER if node.name == "size" else Kind.FLAG


def _is_zero(node: Node) -> bool:
    """Nothing is nothing in every currency."""
    sides = (node.left, node.right) if isinstance(node, Binary) else (node,)
    return any(isinstance(side, Literal) and side.value == 0 for side in sides)
