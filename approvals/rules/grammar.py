"""The grammar of a condition: the piece of CEL that ends by itself. What is not in it is never handed to CEL.

No macros that loop, no regular expressions, no maps, no floats; a bounded length and depth. The parser keeps the place of
every part, so that a fault can be shown where it is.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_CHARS = 1_000
MAX_DEPTH = 12
MAX_NUMBER = 10**15  # so that a product of two is an overflow, which denies, and never another number
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
METHODS = ("startsWith", "endsWith", "contains")


class Faulty(Exception):
    """What is wrong with a condition, and at which character of it."""

    def __init__(self, at: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.at, self.code, self.detail = at, code, detail


@dataclass(frozen=True)
class Literal:
    at: int
    value: int | str | bool


@dataclass(frozen=True)
class Variable:
    at: int
    path: str  # "operation.amount_minor"


@dataclass(frozen=True)
class Elements:
    at: int
    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class Call:
    at: int
    name: str  # one of METHODS, "size" or "has"
    args: "tuple[Node, ...]"  # of a method, the text that it is asked of comes first


@dataclass(frozen=True)
class Unary:
    at: int
    op: str
    operand: "Node"


@dataclass(frozen=True)
class Binary:
    at: int
    op: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Many:
    """`&&` or `||` of two or more."""

    at: int
    op: str
    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Choice:
    at: int
    condition: "Node"
    yes: "Node"
    no: "Node"


type Node = Literal | Variable | Elements | Call | Unary | Binary | Many | Choice


def inside(node: Node) -> "Sequence[Node]":
    """The parts of a node, one level down."""
    match node:
        case Elements(_, items):
            return items
        case Call(_, _, args):
            return args
        case Unary(_, _, operand):
            return (operand,)
        case Binary(_, _, left, right):
            return (left, right)
        case Many(_, _, parts):
            return parts
        case Choice(_, condition, yes, no):
            return (condition, yes, no)
    return ()


def walk(node: Node) -> Iterator[Node]:
    yield node
    for part in inside(node):
        yield from walk(part)


def parse(text: str) -> Node:
    """Raises Faulty with the place of the first thing that cannot stand."""
    if len(text) > MAX_CHARS:
        raise Faulty(
            MAX_CHARS,
            "too_long",
            f"A condition has at most {MAX_CHARS} characters; this one has {len(text)}.",
        )
    return _Parser(text).whole()


@dataclass(frozen=True)
class _Token:
    at: int
    kind: str  # number, text, word, sign, end
    text: str


_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)|(?P<float>[0-9]+\.[0-9]+|[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+)|(?P<number>[0-9]+)(?![\w.])"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)(?!['\"])"
    r"|(?P<text>\"(?:[^\"\\\x00-\x1f\x7f]|\\[\\\"'])*\"|'(?:[^'\\\x00-\x1f\x7f]|\\[\\\"'])*')"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-<>!+*/%?:.,()\[\]])"
)
_ESCAPED = re.compile(r"\\(.)")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Faulty(at, "unexpected", f"{text[at : at + 12]!r} cannot stand here.")
        kind = str(found.lastgroup)
        if kind == "float":
            detail = f"{found.group()} is a decimal. Money is counted in minor units: write 5000 for 50.00."
            raise Faulty(at, "decimal", detail)
        if kind != "space":
            yield _Token(at, kind, found.group())
        at = found.end()
    yield _Token(len(text), "end", "the end")


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depths: dict[int, int] = {}  # of nodes, by identity; they live as long as the tree
        self._nested = 0

    def whole(self) -> Node:
        node = self._choice()
        if self._seen.kind != "end":
            raise self._unexpected()
        return node

    @property
    def _seen(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *signs: str) -> _Token | None:
        token = self._seen
        if token.kind == "sign" and token.text in signs:
            self._next += 1
            return token
        return None

    def _expect(self, sign: str) -> _Token:
        token = self._take(sign)
        if token is None:
            raise Faulty(self._seen.at, "unexpected", f"Here {sign} is expected, not {self._seen.text!r}.")
        return token

    def _unexpected(self) -> Faulty:
        return Faulty(self._seen.at, "unexpected", f"{self._seen.text!r} cannot stand here.")

    def _made[Made: Node](self, node: Made) -> Made:
        depth = 1 + max((self._depths[id(part)] for part in inside(node)), default=0)
        if depth > MAX_DEPTH:
            raise self._too_deep(node.at)
        self._depths[id(node)] = depth
        return node

    def _too_deep(self, at: int) -> Faulty:
        return Faulty(at, "too_deep", f"A condition is nested at most {MAX_DEPTH} deep.")

    def _choice(self) -> Node:
        self._nested += 1
        if self._nested > MAX_DEPTH:
            raise self._too_deep(self._seen.at)
        node = self._either()
        if mark := self._take("?"):
            yes = self._either()
            self._expect(":")
            node = self._made(Choice(mark.at, node, yes, self._choice()))
        self._nested -= 1
        return node

    def _either(self) -> Node:
        parts, mark = [self._all()], None
        while token := self._take("||"):
            mark = mark or token
            parts.append(self._all())
        return parts[0] if mark is None else self._made(Many(mark.at, "||", tuple(parts)))

    def _all(self) -> Node:
        parts, mark = [self._relation()], None
        while token := self._take("&&"):
            mark = mark or token
            parts.append(self._relation())
        return parts[0] if mark is None else self._made(Many(mark.at, "&&", tuple(parts)))

    def _relation(self) -> Node:
        left = self._sum()
        token = self._take(*COMPARISONS) or self._take_in()
        if token is None:
            return left
        node = self._made(Binary(token.at, token.text, left, self._sum()))
        if self._take(*COMPARISONS) or self._take_in():
            self._next -= 1
            raise Faulty(self._seen.at, "chained", "Compare two things at a time, joined by &&.")
        return node

    def _take_in(self) -> _Token | None:
        token = self._seen
        if token.kind == "word" and token.text == "in":
            self._next += 1
            return token
        return None

    def _sum(self) -> Node:
        node = self._product()
        while token := self._take("+", "-"):
            node = self._made(Binary(token.at, token.text, node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._signed()
        while token := self._take("*", "/", "%"):
            node = self._made(Binary(token.at, token.text, node, self._signed()))
        return node

    def _signed(self) -> Node:
        token = self._take("!", "-")
        if token is None:
            return self._member()
        self._nested += 1
        if self._nested > MAX_DEPTH:
            raise self._too_deep(token.at)
        node = self._made(Unary(token.at, token.text, self._signed()))
        self._nested -= 1
        return node

    def _member(self) -> Node:
        node = self._primary()
        while token := self._take("."):
            name = self._word()
            if self._take("("):
                if name.text not in METHODS:
                    raise self._no_function(name)
                node = self._made(Call(name.at, name.text, (node, *self._arguments(")"))))
            elif isinstance(node, Variable):
                node = self._made(Variable(node.at, f"{node.path}.{name.text}"))
            else:
                raise Faulty(token.at, "unexpected", "Only a variable has fields.")
        if self._seen.kind == "sign" and self._seen.text == "[":
            raise Faulty(
                self._seen.at, "not_allowed", "Write a field with a dot; there are no lists to pick from."
            )
        return node

    def _word(self) -> _Token:
        token = self._seen
        if token.kind != "word":
            raise Faulty(token.at, "unexpected", f"Here a name is expected, not {token.text!r}.")
        self._next += 1
        return token

    def _no_function(self, name: _Token) -> Faulty:
        known = ", ".join(("size", "has", *METHODS))
        return Faulty(name.at, "not_allowed", f"There is no {name.text}() here; there are {known}.")

    def _primary(self) -> Node:
        token = self._seen
        if self._take("("):
            node = self._choice()
            self._expect(")")
            return node
        if self._take("["):
            return self._made(Elements(token.at, self._arguments("]")))
        self._next += 1
        match token.kind:
            case "number":
                if int(token.text) > MAX_NUMBER:
                    raise Faulty(token.at, "too_large", f"A number is at most {MAX_NUMBER}.")
                return self._made(Literal(token.at, int(token.text)))
            case "text":
                said = _ESCAPED.sub(r"\1", token.text[1:-1])
                return self._made(Literal(token.at, unicodedata.normalize("NFC", said)))  # as records are
            case "word" if token.text in ("true", "false"):
                return self._made(Literal(token.at, token.text == "true"))
            case "word" if self._take("("):
                if token.text not in ("size", "has"):
                    raise self._no_function(token)
                return self._made(Call(token.at, token.text, self._arguments(")")))
            case "word" if token.text != "in":
                return self._made(Variable(token.at, token.text))
        self._next -= 1
        raise self._unexpected()

    def _arguments(self, end: str) -> tuple[Node, ...]:
        if self._take(end):
            return ()
        items = [self._choice()]
        while self._take(","):
            items.append(self._choice())
        self._expect(end)
        return tuple(items)
