"""The language of rules: what may stand in a condition, where each fault of it stands, and that nothing else is evaluated."""

import re
import time
from functools import partial
from pathlib import Path

import cel
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agentops.demo.seed import RULES
from approvals.rules import conditions, grammar, handbook
from approvals.rules.conditions import CannotEvaluate
from approvals.rules.evaluation import first_match, ruleset
from approvals.rules.shape import lint, read
from approvals.rules.variables import known_for
from approvals.rules.verdicts import Verdict, after
from approvals.states import Outcome
from operations.connectors.registry import ACTIONS

REFUND = ACTIONS["refund.create"]
KNOWN = known_for(REFUND)
VALUES = {
    "operation.amount_minor": 4_900,
    "operation.currency": "EUR",
    "operation.reference": 'R-1 "x\\"',
    "actor.kind": "customer",
    "run.is_child": False,
    "target.order_status": "delivered",
    "target.refundable_minor": 9_000,
    "history.customer.last_24h.count": 2,
    "history.customer.today.sum_minor": 10_000,
}
EUR = 'operation.currency == "EUR" && '


def holds(text: str, **changed) -> bool:
    condition = conditions.ready(text, KNOWN)
    values = VALUES | {name.replace("__", "."): value for name, value in changed.items()}
    context = conditions.context_of(condition.reads, condition.asks_for, values, KNOWN)
    return conditions.holds(condition, context)


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.at, fault.code) for fault in conditions.lint(text, KNOWN)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EUR + "operation.amount_minor <= 5000", True),
        (EUR + "operation.amount_minor + history.customer.today.sum_minor > 14900", False),
        (EUR + "operation.amount_minor + history.customer.today.sum_minor > 14899", True),
        ("operation.amount_minor <= target.refundable_minor / 2 || false", False),
        ("operation.amount_minor * 2 > target.refundable_minor", True),
        ("operation.amount_minor == 0", False),
        ("history.customer.last_24h.count >= 1 + 1 * 1", True),
        ("true || false && false", True),  # && binds closer
        ("(true || false) && false", False),
        ("1 + 2 * 3 == 7 && (1 + 2) * 3 == 9 && 7 % 4 - 1 == 2 && 10 / 4 == 2 && -3 < -2", True),
        ("10 - 4 - 3 == 3", True),
        ("!run.is_child && !(actor.kind != 'customer')", True),
        ('actor.kind in ["user", "customer"]', True),
        ('operation.reference.startsWith("R-") && operation.reference.contains("\\"x\\\\")', True),
        ("size(operation.reference) == 8", True),
        ("has(target.order_status) && !has(target.charge_status)", True),
        ('run.is_child ? false : target.order_status == "delivered"', True),
        ("false ? 1 > 2 : true ? 2 > 1 : false", True),
        ('has(target.charge_status) && target.charge_status == "captured"', False),
    ],
)
def test_a_condition_means_what_cel_says(text, expected):
    assert faults(text) == []
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "at", "code"),
    [
        ("operation.amout_minor > 1", 0, "unknown_variable"),
        (EUR + "operation.amount_minor > 50.0", len(EUR) + 25, "decimal"),
        ("1e3 > 2", 0, "decimal"),
        ("operation.amount_minor > 5000", 23, "no_currency"),
        ('operation.currency == "EUR" || operation.amount_minor > 5000', 54, "no_currency"),
        ('operation.amount_minor > "5000"', 25, "wrong_type"),
        ("operation.amount_minor + true > 1", 25, "wrong_type"),
        ("operation.amount_minor", 0, "not_a_condition"),
        ("actor.kind > 'a'", 0, "wrong_type"),
        ("1 < 2 < 3", 6, "chained"),
        ("operation.amount_minor in 5", 26, "wrong_type"),
        ('[1, "a"] == [1]', 0, "unexpected"),
        ("((", 2, "unexpected"),
        ("true true", 5, "unexpected"),
        ("", 0, "unexpected"),
        ("99999999999999999999 > 1", 0, "too_large"),
        ("operation[0] == 1", 9, "not_allowed"),
        ("has(operation.currency)", 0, "wrong_type"),
        ("size(1) > 1", 5, "wrong_type"),
        ('actor.id.contains("a", "b")', 9, "wrong_type"),
        ("operation.amount_minor * operation.amount_minor > operation.amount_minor", 23, "wrong_type"),
        # what would loop, search or build does not exist here
        ('actor.id.matches("(a+)+$")', 9, "not_allowed"),
        ("[1, 2].map(x, [1, 2].map(y, x * y)).size() > 0", 7, "not_allowed"),
        ("[1].all(x, x > 0)", 4, "not_allowed"),
        ("{'a': 1}.a == 1", 0, "unexpected"),
        ("duration('1h') > duration('1s')", 0, "not_allowed"),
        ("r'a' == 'a'", 0, "unexpected"),
        ('"a\nb" == actor.id', 0, "unexpected"),
        ("5u > 3u", 0, "unexpected"),
        ("actor.id + actor.id == 'a'", 0, "wrong_type"),
        ("true // always", 6, "unexpected"),
        ("operation.version == ３", 21, "unexpected"),  # a digit, and none of CEL's
    ],
)
def test_each_fault_is_shown_where_it_stands(text, at, code):
    assert faults(text)[0] == (at, code)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (EUR + "operation.amount_minor > 5000", ""),
        ("operation.currency in ['EUR', 'USD'] && (operation.amount_minor > 5000 || run.is_child)", ""),
        ("operation.currency != 'EUR' || operation.amount_minor > 5000", ""),
        ("operation.currency == 'EUR' ? operation.amount_minor > 5000 : true", ""),
        ("operation.amount_minor > 0", ""),
        ("history.target.today.sum_minor > 5000", "no_currency"),
        ("run.is_child && operation.amount_minor - 100 > 0", "no_currency"),
    ],
)
def test_an_amount_stands_beside_its_currency(text, why):
    assert [code for _, code in faults(text)] == ([why] if why else [])


HOSTILE = {
    "long": "true || " * 2_000 + "true",
    "deep brackets": "(" * 480 + "true" + ")" * 480,
    "deep negations": "!" * 990 + "true",
    "deep signs": "-" * 990 + "1 > 0",
    "deep sums": "+".join(["1"] * 450) + " > 0",
    "deep choices": "true ? true : " * 70 + "true",
    "deep lists": "[" * 480 + "1" + "]" * 480 + " == 1",
    "nested maps": "[1,2,3].map(a, [1,2,3].map(b, [1,2,3].map(c, [1,2,3].map(d, a*b*c*d)))).size() > 0",
    "regex bomb": "actor.id.matches('(((a+)+)+)+$')",
    "long text": "'" + "a" * 5_000 + "' == actor.id",
    "deep calls": "actor.id.contains(" * 200 + "'a'" + ")" * 200,
    "no end": "'aaaaaaaaaaaa",
    "nul": "actor.id == '\x00",
    "nul in a text": "actor.id == '\x00'",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_condition_never_reaches_cel_and_its_rule_denies(text, monkeypatch):
    def reached(written):
        raise AssertionError(f"CEL was given {written[:80]}")

    monkeypatch.setattr("cel.compile", reached)
    began = time.process_time()
    assert faults(text)
    assert time.process_time() - began < 1
    rules = ruleset(REFUND, [{"code": "x", "when": text, "outcome": "allow"}])
    with pytest.raises(CannotEvaluate):
        first_match(rules, VALUES)


def of_values(kind: str, depth: int):
    """Conditions of the grammar at random, with brackets only where somebody has put them."""
    number = st.one_of(
        st.sampled_from(
            [
                "operation.amount_minor",
                "target.refundable_minor",
                "history.customer.last_24h.count",
                "0",
                "7",
                "4900",
            ]
        )
    )
    text = st.sampled_from(["actor.kind", "target.order_status", "'customer'", '"a"'])
    if depth == 0:
        return {"number": number, "text": text, "flag": st.sampled_from(["true", "false", "run.is_child"])}[
            kind
        ]
    less = {name: of_values(name, depth - 1) for name in ("number", "flag")}

    def joined(pattern, *parts):
        return st.tuples(*parts).map(lambda found: pattern.format(*found))

    if kind == "number":
        signs = st.sampled_from("+-*/%")
        return st.one_of(
            number,
            joined("{} {} {}", less["number"], signs, less["number"]),
            joined("({} {} {})", less["number"], signs, less["number"]),
            joined("-({})", less["number"]),
        )
    compared = st.sampled_from(grammar.COMPARISONS)
    return st.one_of(
        joined("{} {} {}", less["number"], compared, less["number"]),
        joined("{} {} {}", text, st.sampled_from(["==", "!="]), text),
        joined("{} in [{}, {}]", text, text, text),
        joined("{} && {}", less["flag"], less["flag"]),
        joined("{} || {}", less["flag"], less["flag"]),
        joined("({})", less["flag"]),
        joined("!({})", less["flag"]),
        joined("({}) ? {} : {}", less["flag"], less["flag"], less["flag"]),
    )


def nested() -> dict:
    tree: dict = {}
    for path, value in VALUES.items():
        *way, name = path.split(".")
        place = tree
        for part in way:
            place = place.setdefault(part, {})
        place[name] = value
    return tree


@given(of_values("flag", 3))
@hypothesis_settings(max_examples=300, deadline=None, database=None, derandomize=True)
def test_whatever_our_grammar_takes_means_the_same_to_cel_itself(text):
    """Our reading, in full brackets, against CEL's own reading of what was written."""
    if any(fault.code != "no_currency" for fault in conditions.lint(text, KNOWN)):
        return
    try:
        ours = holds(text)
    except CannotEvaluate:
        with pytest.raises(Exception):
            cel.evaluate(text, nested())
    else:
        assert cel.evaluate(text, nested()) is ours


def test_what_is_long_but_within_bounds_is_answered():
    many = " || ".join(f'actor.id == "{n:04}"' for n in range(45))
    assert len(many) < grammar.MAX_CHARS
    assert holds(f"{many} || true")
    assert holds(f"({many}) == false", **{"actor__id": "x" * 100_000})


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            "operation.amount_minor / history.customer.last_24h.count > 1",
            {"history__customer__last_24h__count": 0},
        ),
        ("operation.amount_minor * 1000000000000000 * 1000 > operation.amount_minor", {}),
        (EUR + "operation.amount_minor <= 5000", {"operation__amount_minor": 4_900.0}),
        (EUR + "operation.amount_minor <= 5000", {"operation__amount_minor": True}),
        (EUR + "operation.amount_minor <= 5000", {"operation__amount_minor": 2**63}),
        (EUR + "operation.amount_minor <= 5000", {"operation__amount_minor": None}),
        ("target.order_status == 'x'", {"target__order_status": 1}),
        ("target.charge_status == 'captured'", {}),
        ("size(target.charge_status) == 0", {}),
        ("-operation.version < 0", {"operation__version": -(2**63)}),
    ],
)
def test_what_has_no_answer_is_not_answered(text, changed):
    with pytest.raises(CannotEvaluate):
        holds(text, **changed)


def test_the_size_of_a_text_is_counted_in_characters_as_cel_says():
    text = "size(actor.id) == 5 && size('退款') == 2 && size(run.is_child ? '' : actor.id) == 5"
    assert faults(text) == []
    assert holds(text, actor__id="客户-Ü1", run__is_child=False)


def test_a_fault_of_the_library_is_no_answer_either(monkeypatch):
    class PanicException(BaseException):
        """As a panic in Rust comes up."""

    class Broken:
        def execute(self, context):
            raise PanicException

    class Odd:
        def execute(self, context):
            return 1

    for program in (Broken(), Odd()):
        with pytest.raises(CannotEvaluate):
            conditions.holds(conditions.Condition(program, frozenset(), frozenset()), None)


def rule(**more):
    return {"code": "a.rule", "when": "true", "outcome": "allow", **more}


@pytest.mark.parametrize(
    ("rules", "place", "code"),
    [
        ("x", "", "no_list"),
        ([rule()] * 51, "", "too_many"),
        ([rule(outcome="perhaps")], "rule 1, outcome", "enum"),
        ([rule(code="Has Spaces")], "rule 1, code", "string_pattern_mismatch"),
        ([{"when": "true", "outcome": "allow"}], "rule 1, code", "missing"),
        ([rule(wen="true")], "rule 1, wen", "extra_forbidden"),
        (["x"], "rule 1, whole", "model_type"),
        ([rule(required=0)], "rule 1, required", "greater_than_equal"),
        ([rule(expires_hours=0)], "rule 1, expires_hours", "greater_than_equal"),
        ([rule(hold_seconds=1.5)], "rule 1, hold_seconds", "int_type"),
        ([rule(clamp={"order": 1})], "rule 1, clamp", "not_adjustable"),
        ([rule(clamp={"\ud800": 1})], f"rule 1, clamp.{'\ufffd' * 3}.[key]", "string_unicode"),
        ([rule(clamp={"amount_minor": 2**63})], "rule 1, clamp.amount_minor", "less_than_equal"),
        ([rule(params={"most": 10**400})], "rule 1, params.most", "less_than_equal"),
        ([rule(when='actor.id == "\x00"')], "rule 1, when, line 1, column 13", "unexpected"),
        ([rule(clamp={"amount_minor": 50.5})], "rule 1, clamp.amount_minor", "int_type"),
        ([rule(outcome="deny", when=EUR + "true", clamp={"amount_minor": 50})], "rule 1, clamp", "denied"),
        ([rule(clamp={"amount_minor": 50})], "rule 1, clamp", "no_currency"),
        ([rule(sentences={"en": "Above {limit}."})], "rule 1, sentences.en", "no_value"),
        ([rule(sentences={"en": "Above \x00."})], "rule 1, sentences.en", "string_pattern_mismatch"),
        ([rule(params={"limit": 50.5})], "rule 1, params.limit", "int_type"),
        ([rule(when="false"), rule()], "rule 2, code", "twice"),
        ([rule(), rule(code="b")], "rule 2, when", "never_reached"),
        ([rule(when="true &&\n  operation.what == 1")], "rule 1, when, line 2, column 3", "unknown_variable"),
    ],
)
def test_a_faulty_list_is_refused_with_the_place(rules, place, code):
    fault = lint(REFUND, rules)[0]
    assert (str(fault).partition(":")[0] if place else "", fault.code) == (place, code)


def test_a_good_list_has_no_fault_and_the_first_that_holds_decides():
    rules = [
        rule(code="many", when="history.customer.last_24h.count >= 3", outcome="deny", expires_hours=None),
        rule(code="small", when=EUR + "operation.amount_minor <= 5000", clamp={"amount_minor": 4_000}),
        rule(
            code="rest",
            outcome="require_approval",
            sentences={"en": "{why}", "zh-CN": "{why}"},
            params={"why": "x"},
        ),
    ]
    assert lint(REFUND, rules) == []
    made = ruleset(REFUND, rules)
    assert made.windows == {("customer", "last_24h")}
    decides = {n: first_match(made, VALUES | {"history.customer.last_24h.count": n}).code for n in (2, 3)}
    assert decides == {2: "small", 3: "many"}
    assert first_match(made, VALUES | {"operation.currency": "USD"}).code == "rest"


def test_a_rule_that_is_none_denies_only_where_it_is_reached():
    made = ruleset(REFUND, [rule(when="run.is_child"), rule(code="b", when="nothing")])
    assert first_match(made, VALUES | {"run.is_child": True}).code == "a.rule"
    with pytest.raises(CannotEvaluate):
        first_match(made, VALUES)


def test_a_rule_that_lowers_what_may_not_be_lowered_denies():
    with pytest.raises(CannotEvaluate):
        first_match(ruleset(REFUND, [rule(clamp={"order": 1})]), VALUES)


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_rule_lowers_is_asked_of_the_strictest_that_either_rule_names(swapped):
    """One names a group, the other more people and a hold: none of it is lost on the way down."""
    ask = partial(Verdict, Outcome.REQUIRE_APPROVAL, codes=())
    pair = (
        ask("a", group="finance", required=1, hold_seconds=0),
        ask("b", group="", required=3, hold_seconds=600),
    )
    earlier, now = reversed(pair) if swapped else pair
    both = after(earlier, now)
    assert (both.required, both.group, both.hold_seconds) == (3, "finance", 600)


def test_rules_are_read_without_decimals():
    assert read('[{"code": "a", "hold_seconds": 5}]') == [{"code": "a", "hold_seconds": 5}]
    for text in ('[{"hold_seconds": 5.5}]', "[", "[1e5]"):
        with pytest.raises(ValueError, match=r"decimal|column"):
            read(text)
    with pytest.raises(ValueError, match="twice"):
        read('[{"when": "false", "when": "true"}]')
    with pytest.raises(ValueError, match="deep"):
        read("[" * 100_000)


def test_one_word_is_one_word_however_it_is_written():
    assert holds('target.order_status == "Zoe\u0308"', target__order_status="Zo\u00eb")


def test_the_handbook_names_every_variable_and_field_that_there_is_and_its_example_is_one():
    """After a change: write `handbook.written(text)` back to the file."""
    text = Path("docs/policy.md").read_text()
    assert handbook.written(text) == text
    assert {path for path in KNOWN if not path.startswith("history.") and f"`{path}`" not in text} == set()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.S)
    assert lint(REFUND, read(example)) == []


def test_the_rules_of_the_demo_have_no_fault():
    for action, rules in RULES.items():
        assert lint(ACTIONS[action], rules) == [], action
