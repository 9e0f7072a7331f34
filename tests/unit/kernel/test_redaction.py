"""Masks: what looks like a secret or a person is not told; what is ours to tell is."""

import pytest

from agentops.kernel.redaction import MASK, mask, mask_text, printable, reason


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("key sk_test_agentops_demo", f"key {MASK}"),
        ("whsec_0123456789abcdef!", f"{MASK}!"),
        ("Authorization: Bearer abcdef.ghi-jkl", f"Authorization: Bearer {MASK}"),
        ("token agops_kQ8hX2dJ4mZ", f"token {MASK}"),
        ("jwt eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln", f"jwt {MASK}"),
        (f"jwt eyJ{'x' * 5_000}.eyJzdWIiOiJ4In0.c2ln", f"jwt {MASK}"),  # a header with its certificates
        ("/a-eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln", f"/a-{MASK}"),
        ("mara.lindt@example.com wrote", f"m{MASK}@example.com wrote"),
        ("_mara@example.com, émara@example.com", f"_m{MASK}@example.com, ém{MASK}@example.com"),
        ("-mara@example.com", f"-m{MASK}@example.com"),
        ("card 4242 4242 4242 4242.", f"card {MASK} 4242."),
        ("card 4242424242424242", f"card {MASK} 4242"),
        ("IBAN DE89 3704 0044 0532 0130 00", f"IBAN {MASK}"),
        ("call +49 (30) 1234567-89 now", f"call {MASK} now"),
    ],
)
def test_what_nobody_needs_is_masked(said, told):
    assert mask_text(said) == told


@pytest.mark.parametrize(
    "said",
    [
        "order A-1002, 489.00 EUR",
        "re_1NqXyz",
        "ch_mr2kFrN0pejxYt7F6nBGRiVy",
        "2026-11-30T12:00:00Z",
        "run_01m8n01njjeyjszbe4y236b719",
    ],
)
def test_what_is_ours_to_tell_stays(said):
    assert mask_text(said) == said


def test_fields_that_are_named_like_a_secret_are_masked_whole_and_deep():
    value = {"api_key": 1, "nested": [{"Password": "x", "note": "a@b.de"}], "Set-Cookie": ["x"], "amount": 5}
    assert mask(value) == {
        "api_key": MASK,
        "nested": [{"Password": MASK, "note": f"a{MASK}@b.de"}],
        "Set-Cookie": MASK,
        "amount": 5,
    }
    assert value["api_key"] == 1


def test_text_that_cannot_be_stored_or_that_lies_on_a_page_is_made_plain():
    assert printable("a\x00b\ud800c\u202ed") == "a\ufffdb?cd"
    assert printable("x" * 30, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("nothing", ["", "  ", "\u202e \u202e", "\u200b\u2060", "\u200d\n", "\u3000\u00ad"])
def test_a_reason_that_nobody_can_see_is_none(nothing):
    assert reason(nothing) == ""
    assert "照片不清楚" in reason(f"{nothing}照片不清楚{nothing}")


@pytest.mark.parametrize("piece", ["a.", "a-", "eyJaaaaaaaa-", "eyJaaaaaaaa.", "eyJ-", "a@", "1 ("])
def test_a_megabyte_is_read_once(piece: str) -> None:
    """Anybody can have long words written to the log: read anew from each of their letters, these would take minutes."""
    long = piece * (1_000_000 // len(piece))
    assert mask_text(f"{long} mara@example.com").endswith(f" m{MASK}@example.com")
