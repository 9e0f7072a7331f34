"""The canonical form: one digest for equal meaning, another for another; the rules are the module's published list."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.kernel import canonical
from agentops.kernel.canonical import NotCanonical, digest, reference, serialise

BASE = {"charge": "ch_1", "amount_minor": 1000, "currency": "EUR", "line": "A-1-1"}
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcd", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_the_order_of_keys_does_not_matter():
    assert digest("params", dict(reversed(BASE.items()))) == digest("params", BASE)


def test_null_and_missing_are_one():
    assert digest("params", BASE | {"note": None}) == digest("params", BASE)
    assert digest("params", BASE | {"note": ""}) != digest("params", BASE)
    assert serialise([None, 1]) != serialise([1])


@pytest.mark.parametrize(
    "wrong", [10.0, 10.5, float("nan"), Decimal("10.00"), object(), b"x", {1: 2}, "\ud800", "a\x00"]
)
def test_money_is_an_integer_of_minor_units_and_what_has_no_form_is_refused(wrong):
    with pytest.raises(NotCanonical, match=r"\$\.amount_minor"):
        digest("params", BASE | {"amount_minor": wrong})


def test_ten_is_not_the_text_ten():
    assert digest("params", BASE | {"amount_minor": "1000"}) != digest("params", BASE)


def test_another_currency_or_amount_is_another_meaning():
    assert (
        len({digest("params", BASE | change) for change in ({}, {"currency": "USD"}, {"amount_minor": 1001})})
        == 3
    )


def test_composed_and_decomposed_accents_are_one_also_in_keys():
    assert digest("params", {"café": "é"}) == digest("params", {"cafe\u0301": "e\u0301"})
    with pytest.raises(NotCanonical, match="two keys become"):
        digest("params", {"é": 1, "e\u0301": 2})


def test_a_reference_is_trimmed_and_other_text_is_not():
    assert reference("  A-1-1\t") == reference("A-1-1")
    assert digest("params", BASE | {"note": "x "}) != digest("params", BASE | {"note": "x"})


def test_one_instant_is_one_time_in_whatever_zone():
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=8)))
    assert digest("t", {"at": noon}) == digest("t", {"at": east})
    assert canonical.canonical(east) == "2026-11-30T12:00:00Z"
    with pytest.raises(NotCanonical, match="without a zone"):
        digest("t", {"at": noon.replace(tzinfo=None)})


def test_an_integer_beyond_what_json_readers_keep_becomes_its_digits():
    assert serialise(2**53 - 1) == b"9007199254740991"
    assert serialise(2**53) == b'"9007199254740992"'
    assert serialise(-(2**53)) == b'"-9007199254740992"'


def test_true_is_not_one():
    assert digest("t", True) != digest("t", 1)


def test_digests_of_different_things_are_apart_and_name_their_version():
    assert digest("params", BASE) != digest("proposal", BASE)
    kind = digest("params", BASE).split(":")
    assert kind[:2] == [canonical.VERSION, "params"]
    assert len(kind[2]) == 64


@given(plain)
def test_the_canonical_form_of_a_canonical_form_is_itself(value):
    once = canonical.canonical(value)
    assert canonical.canonical(once) == once
    assert serialise(once) == serialise(value)


def test_the_rules_are_published_in_the_module():
    for rule in ("NFC", "minor units", "UTC", "null", "2^53", "RFC 8785"):
        assert rule in (canonical.__doc__ or "")
