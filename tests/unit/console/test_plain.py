"""Text of customers and models cannot hide or reorder anything on a page."""

from agentops.console.names import with_names
from agentops.console.plain import plain


def test_bidi_controls_become_visible() -> None:
    assert plain("abc\u202egpj.exe") == "abc[U+202E]gpj.exe"
    assert plain("\u2066x\u2069\u200f") == "[U+2066]x[U+2069][U+200F]"


def test_control_characters_are_replaced_and_lines_stay() -> None:
    assert plain("a\x00b\x1b[31m\r\nc\td") == "a\ufffdb\ufffd[31m\nc\td"


def test_markup_stays_as_it_was_written() -> None:
    assert (
        plain("<script>alert(1)</script> [x](javascript:1)") == "<script>alert(1)</script> [x](javascript:1)"
    )


def test_accounts_are_shown_by_name_where_it_is_known() -> None:
    assert (
        with_names("approved by user:7, then user:70", {"user:7": "Lena"}) == "approved by Lena, then user:70"
    )
