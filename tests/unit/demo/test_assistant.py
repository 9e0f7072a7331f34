"""`assistant` on its offline script."""

import pytest

from agentops.demo.assistant import assistant
from agentops.sdk import Message, OperationRefused, Receipt
from agentops.sdk.testing import Proposal, Rehearsal, rehearse


@pytest.mark.parametrize(
    ("request_text", "note", "answer"),
    [
        ("Add a note: buy milk", "buy milk", "Noted."),
        ("please take a note buy milk, then bread", "buy milk, then bread", "Noted."),
        ("添加笔记:买牛奶", "买牛奶", "已记下。"),
        ("记一条备注:买牛奶", "买牛奶", "已记下。"),
    ],
)
def test_a_note_is_proposed_word_for_word(request_text: str, note: str, answer: str):
    ctx = Rehearsal()
    told = rehearse(assistant, request_text, ctx)
    assert ctx.proposals == [Proposal("note.add", "notes:acme", {"text": note}, "turn-1/call-0", None)]
    assert told[-1].text == answer


@pytest.mark.parametrize("request_text", ["hello", "Add a note:   ", "你好", ""])
def test_what_it_does_not_understand_it_says(request_text: str):
    ctx = Rehearsal()
    told = rehearse(assistant, request_text, ctx)
    assert len(told) == 2
    assert told[-1].text
    assert ctx.proposals == []


@pytest.mark.parametrize(
    ("request_text", "title"), [("List my notes", "Your notes:"), ("列出我的笔记", "您的笔记:")]
)
def test_notes_are_listed(request_text: str, title: str):
    assert assistant.offline is not None
    asked = Message("user", request_text)
    call = assistant.offline([asked]).calls[0]
    assert (call.tool, call.args) == ("list_notes", {})
    listed = Message("tool", tool="list_notes", result={"notes": [{"id": "1", "text": "buy milk"}]})
    assert assistant.offline([asked, listed]).text == f"{title}\n- buy milk"
    empty = Message("tool", tool="list_notes", result={"notes": []})
    assert "buy" not in assistant.offline([asked, empty]).text


def test_a_refused_note_is_explained():
    def refuse(proposal: Proposal) -> Receipt:
        raise OperationRefused("op_1", "rejected", "policy", "notes are closed")

    told = rehearse(assistant, "Add a note: buy milk", Rehearsal(outcome=refuse))
    assert told[-1].text == "That did not work: notes are closed"
