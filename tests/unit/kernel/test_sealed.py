"""Envelopes: they open in their own place with their own key, and nowhere else, and not when a bit has changed."""

import pytest

from agentops.kernel import sealed
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import CannotUnseal, Key, Place

KEY = Key(uuid7(), sealed.new_secret())
HERE = Place("operations_operation", "row-1", "params")


def test_what_was_sealed_opens_and_no_two_envelopes_are_alike():
    first, second = (sealed.seal_json(KEY, HERE, {"a": "é", "b": [1, None]}) for _ in range(2))
    assert first != second
    assert sealed.unseal_json(KEY, HERE, memoryview(first)) == {"a": "é", "b": [1, None]}
    assert sealed.key_id(first) == KEY.id
    assert b"params" not in first


@pytest.mark.parametrize(
    "place", [HERE._replace(row="row-2"), HERE._replace(column="receipt"), HERE._replace(table="x")]
)
def test_moved_to_another_row_column_or_table_it_does_not_open(place):
    with pytest.raises(CannotUnseal, match="altered or moved"):
        sealed.unseal_bytes(KEY, place, sealed.seal_bytes(KEY, HERE, b"x"))


def test_places_that_read_alike_when_joined_are_two():
    with pytest.raises(CannotUnseal):
        sealed.unseal_bytes(KEY, Place("a", "bc", "d"), sealed.seal_bytes(KEY, Place("ab", "c", "d"), b"x"))


def test_altered_in_any_byte_it_does_not_open():
    envelope = sealed.seal_bytes(KEY, HERE, b"text")
    for place in range(len(envelope)):
        altered = bytearray(envelope)
        altered[place] ^= 1
        with pytest.raises(CannotUnseal):
            sealed.unseal_bytes(KEY, HERE, bytes(altered))


@pytest.mark.parametrize("wrong", [b"", b"\x01" + b"x" * 10, b"\x02" + b"x" * 60])
def test_what_is_no_envelope_is_said_to_be_none(wrong):
    with pytest.raises(CannotUnseal, match="not an envelope"):
        sealed.key_id(wrong)


def test_another_key_does_not_open_it_nor_another_secret_under_its_name():
    envelope = sealed.seal_bytes(KEY, HERE, b"x")
    with pytest.raises(CannotUnseal, match="another key"):
        sealed.unseal_bytes(Key(uuid7(), KEY.secret), HERE, envelope)
    with pytest.raises(CannotUnseal):
        sealed.unseal_bytes(Key(KEY.id, sealed.new_secret()), HERE, envelope)
