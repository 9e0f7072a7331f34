import pytest
from django.http import HttpRequest

from agentops.api.idempotency_key import key_of
from agentops.kernel.problems import BadRequest


def request(value: str | None) -> HttpRequest:
    made = HttpRequest()
    if value is not None:
        made.META["HTTP_IDEMPOTENCY_KEY"] = value
    return made


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        (r'"a\"b\\c"', r"a\"b\\c".replace(r"\"", '"').replace(r"\\", "\\")),
        (" spaced out ", "spaced out"),
        ("x" * 255, "x" * 255),
        ('"' + "x" * 255 + '"', "x" * 255),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    ],
)
def test_a_key_is_read_bare_or_as_a_quoted_string(sent, key):
    assert key_of(request(sent)) == key


@pytest.mark.parametrize(
    "sent",
    ["", '""', "x" * 256, "ключ", "tab\tinside", '"open', '"a"b"', r'"bad \x escape"', '"a", "b"', '"a";p=1'],
)
def test_a_key_that_breaks_the_rule_is_answered_with_the_rule(sent):
    with pytest.raises(BadRequest, match="1 to 255 characters of printable ASCII") as refused:
        key_of(request(sent))
    assert refused.value.code == "idempotency_key_invalid"


def test_a_missing_key_is_told_apart_from_a_bad_one():
    with pytest.raises(BadRequest, match="is missing") as refused:
        key_of(request(None))
    assert refused.value.code == "idempotency_key_missing"
