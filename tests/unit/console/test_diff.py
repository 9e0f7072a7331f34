"""A changed text is read once, with what goes and what comes."""

from agentops.console.diff import word_diff


def test_a_diff_is_the_old_text_without_what_comes_and_the_new_one_without_what_goes() -> None:
    before, after = "Dear Mara, your lamp\nis on its way.", "Dear Mara, your lamp\nhas arrived today."
    pieces = word_diff(before, after)
    assert "".join(text for kind, text in pieces if kind != "ins") == before
    assert "".join(text for kind, text in pieces if kind != "del") == after
    assert pieces[0] == ("same", "Dear Mara, your lamp\n")


def test_what_is_too_long_to_compare_is_not_compared() -> None:
    assert word_diff("a " * 5_000, "b " * 5_000) == []
