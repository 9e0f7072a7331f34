"""`support-agent` on its offline script, with its real tools, against a shop over HTTP."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agentops.demo.support_agent import support
from agentops.sdk import Message, OperationRefused, OutcomeUnknown, Receipt
from agentops.sdk.testing import Proposal, Rehearsal, rehearse, succeed, undecided
from tests.unit.demo.shop_server import Shop, order, serving


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    books = Shop()
    with serving(books) as url:
        monkeypatch.setenv("AGENTOPS_SHOP_URL", f"{url}/")
        yield books


def calls(conversation: list[Message]) -> list[str]:
    return [message.tool for message in conversation if message.role == "tool"]


def refusing(status: str, reason: str, code: str = "policy") -> Callable[[Proposal], Receipt]:
    def refuse(proposal: Proposal) -> Receipt:
        raise OperationRefused("op_1", status, code, reason)

    return refuse


def test_a_refund_takes_four_turns_and_names_its_reference(shop: Shop):
    ctx = Rehearsal()
    told = rehearse(support, "My order A-1001 arrived damaged, please refund it.", ctx)
    assert calls(told) == ["lookup_order", "check_refund_policy", "refund_order"]
    assert "129.00 EUR" in told[-1].text
    assert "ref_A-1001-1" in told[-1].text
    refund, mail = ctx.proposals
    assert refund == Proposal(
        action="refund.create",
        target="order:A-1001",
        params={
            "charge": "ch_A-1001",
            "order": "A-1001",
            "line": "A-1001-1",
            "amount_minor": 12900,
            "currency": "EUR",
            "reason": "damaged",
            "note": "",
        },
        reference="A-1001-1",
        key=None,
    )
    assert mail == Proposal(
        action="mail.send",
        target="customer:C-1",
        params={
            "template": "refund-receipt",
            "to_customer": "C-1",
            "order": "A-1001",
            "amount_minor": 12900,
            "currency": "EUR",
            "refund_ref": "ref_A-1001-1",
        },
        reference="op_A-1001-1",
        key="receipt-mail",
    )


def test_the_shop_learns_who_asks_and_about_what(shop: Shop):
    rehearse(support, "Where is order A-1001?", Rehearsal())
    assert shop.asked == [("/orders/A-1001", "rehearsal shop order:A-1001")]


def test_the_customer_is_answered_in_chinese(shop: Shop):
    ctx = Rehearsal()
    told = rehearse(support, "为订单 A-1001 退款", ctx)
    assert told[-1].text == "已为订单 A-1001 退款 129.00 EUR,退款编号为 ref_A-1001-1。"
    assert [proposal.action for proposal in ctx.proposals] == ["refund.create", "mail.send"]
    glued = rehearse(support, "我想取消订单A-1002。", ctx)
    assert glued[-1].text == "订单 A-1002 已取消。"


def test_two_runs_about_one_order_have_one_reference(shop: Shop):
    first, second = Rehearsal(run_id="run_1"), Rehearsal(run_id="run_2")
    rehearse(support, "Refund A-1001, it is broken.", first)
    rehearse(support, "I want my money back for a-1001!", second)
    assert first.proposals[0].reference == second.proposals[0].reference


@pytest.mark.parametrize(
    ("wish", "amount_minor"),
    [
        ("refund 20 EUR of order A-1002", 2000),
        ("refund €20.50 of order A-1002", 2050),
        ("为订单 A-1002 退款 20,5 欧元", 2050),
        ("Refund 1.00 euro for A-1002", 100),
        ("Refund A-1002", 48900),
    ],
)
def test_an_amount_is_read_in_minor_units(shop: Shop, wish: str, amount_minor: int):
    ctx = Rehearsal()
    rehearse(support, wish, ctx)
    assert ctx.proposals[0].params["amount_minor"] == amount_minor


@pytest.mark.parametrize(
    "wish", ["refund 2,599.00 EUR of A-1002", "refund 20 USD of A-1002", "refund 0 EUR of A-1002"]
)
def test_an_amount_that_cannot_be_refunded_is_never_proposed(shop: Shop, wish: str):
    ctx = Rehearsal()
    told = rehearse(support, wish, ctx)
    assert ctx.proposals == []
    assert "could not be carried out" in told[-1].text


def test_cancelling_proposes_the_order_itself(shop: Shop):
    ctx = Rehearsal()
    told = rehearse(support, "Cancel order A-1002.", ctx)
    assert calls(told) == ["lookup_order", "cancel_order"]
    assert ctx.proposals == [
        Proposal("order.cancel", "order:A-1002", {"order": "A-1002", "reason": "not_wanted"}, "A-1002", None)
    ]
    assert told[-1].text == "Order A-1002 is cancelled."


def test_a_question_only_looks(shop: Shop):
    ctx = Rehearsal()
    told = rehearse(support, "Where is order A-1001?", ctx)
    assert calls(told) == ["lookup_order"]
    assert ctx.proposals == []
    assert "129.00 EUR" in told[-1].text
    assert "T-77" in told[-1].text
    assert "packed" in rehearse(support, "Where is order A-1002?", ctx)[-1].text


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("rejected", "declined: the photo shows no damage."),
        ("expired", "It was not refused"),
        ("cancelled", "before anything was sent"),
        ("failed", "could not be carried out: the photo shows no damage."),
    ],
)
def test_each_end_without_effect_is_told_in_its_own_words(shop: Shop, status: str, expected: str):
    ctx = Rehearsal(outcome=refusing(status, "the photo shows no damage."))
    told = rehearse(support, "Please refund A-1001.", ctx)
    assert expected in told[-1].text
    assert len(ctx.proposals) == 1


def test_a_reviewers_reason_reaches_a_chinese_customer_too(shop: Shop):
    told = rehearse(
        support, "为订单 A-1001 退款", Rehearsal(outcome=refusing("rejected", "照片上没有损坏。"))
    )
    assert told[-1].text == "很抱歉,订单 A-1001 的申请未获批准:照片上没有损坏。"


def test_terms_of_the_shop_end_it_before_any_proposal(shop: Shop):
    shop.final_sale.add("A-1001")
    ctx = Rehearsal()
    told = rehearse(support, "Refund A-1001", ctx)
    assert "final sale" in told[-1].text
    assert ctx.proposals == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Please refund it.", "Which order"),
        ("请退款", "哪个订单"),
        ("Refund A-1001 and A-1002", "A-1001, A-1002"),
        ("", "Which order"),
    ],
)
def test_without_one_clear_order_it_asks(shop: Shop, text: str, expected: str):
    told = rehearse(support, text, Rehearsal())
    assert calls(told) == []
    assert expected in told[-1].text


@pytest.mark.parametrize(
    ("order_id", "expected"),
    [
        ("A-9999", "cannot find order A-9999"),
        ("A-403", "belongs to another customer"),
        ("A-500", "too busy"),
        ("A-418", "HTTP 418"),
        ("A-7", "cannot be read"),
    ],
)
def test_what_the_shop_refuses_is_told_once_and_not_asked_again(shop: Shop, order_id: str, expected: str):
    told = rehearse(support, f"Refund {order_id}", Rehearsal())
    assert calls(told) == ["lookup_order"]
    assert expected in told[-1].text


def test_a_shop_that_is_down_is_worth_another_try(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTOPS_SHOP_URL", "http://127.0.0.1:9")
    told = rehearse(support, "Where is A-1001?", Rehearsal())
    assert told[-2].result["error"]["code"] == "shop_unreachable"
    monkeypatch.delenv("AGENTOPS_SHOP_URL")
    assert "AGENTOPS_SHOP_URL" in rehearse(support, "Where is A-1001?", Rehearsal())[-1].text


def test_an_order_with_several_lines_needs_one_of_them(shop: Shop):
    ctx = Rehearsal()
    told = rehearse(support, "Refund A-2", ctx)
    assert "A-2-1 (Cup), A-2-2 (Cup)" in told[-1].text
    refund = support.tool("refund_order")
    assert refund is not None
    ctx.begin("turn-9/call-0")
    refund(ctx, **refund.bind({"order_id": "A-2", "reason": "other", "line": "A-2-2"}))
    assert ctx.proposals[0].reference == "A-2-2"


@pytest.mark.parametrize(
    "lost", [OperationRefused("op_1", "rejected", "policy", "no"), OutcomeUnknown("op_1")]
)
def test_a_mail_refused_or_lost_leaves_the_refund_standing(shop: Shop, lost: Exception):
    def outcome(proposal: Proposal) -> Receipt:
        if proposal.action == "mail.send":
            raise lost
        return succeed(proposal)

    told = rehearse(support, "Refund A-1001", Rehearsal(outcome=outcome))
    assert "129.00 EUR" in told[-1].text


def test_a_refund_whose_outcome_is_unknown_is_told_so_and_stays_so_when_its_process_dies(shop: Shop):
    def unknown(proposal: Proposal) -> Receipt:
        raise OutcomeUnknown("op_1")

    ctx = Rehearsal(outcome=unknown)
    ctx.die(after="refund.create")
    told = rehearse(support, "Refund A-1001", ctx)
    assert "is unknown; a person is on it" in told[-1].text
    assert (ctx.lives, len(ctx.proposals)) == (2, 1)


def test_a_second_life_proposes_what_the_first_one_saw(shop: Shop):
    ctx, refund = Rehearsal(), support.tool("refund_order")
    assert refund is not None
    arguments = refund.bind({"order_id": "A-1001", "reason": "damaged"})
    refund(ctx, **arguments)
    shop.answers["/orders/A-1001"] = (200, order("A-1001", 1, charge="ch_other"))
    ctx.begin(ctx.call_id)
    refund(ctx, **arguments)
    assert [proposal.action for proposal in ctx.proposals] == ["refund.create", "mail.send"]
    assert ctx.proposals[0].params["charge"] == "ch_A-1001"


MOMENTS = [
    {moment: place}
    for moment in ("before", "during", "after")
    for place in (
        "turn-1",
        "turn-1/call-0",
        "turn-3/call-0",
        "order",
        "refund.create",
        "receipt-mail",
        "turn-4",
    )
]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_whenever_the_process_dies_one_refund_and_one_mail_are_proposed(shop: Shop, moment: dict[str, str]):
    ctx = Rehearsal()
    ctx.die(**moment)
    told = rehearse(support, "Refund A-1001, it arrived damaged.", ctx)
    assert "129.00 EUR" in told[-1].text
    assert [proposal.action for proposal in ctx.proposals] == ["refund.create", "mail.send"]
    assert ctx.turns == 4 + (moment in ({"during": "turn-1"}, {"during": "turn-4"}))


def test_a_refund_waits_for_a_person_as_long_as_it_takes(shop: Shop):
    ctx = Rehearsal(outcome=undecided)
    rehearse(support, "Refund A-1001", ctx)
    assert (ctx.status, ctx.blocked_on) == ("waiting", {"approval"})
    ctx.clock.advance(3 * 24 * 3600)
    ctx.outcome = succeed
    told = rehearse(support, "Refund A-1001", ctx)
    assert (ctx.status, len(ctx.proposals), ctx.turns) == ("completed", 2, 4)
    assert "129.00 EUR" in told[-1].text


def test_a_lowered_refund_is_told_as_it_happened(shop: Shop):
    def lowered(proposal: Proposal) -> Receipt:
        return succeed(replace(proposal, params=proposal.params | {"amount_minor": 5000}))

    ctx = Rehearsal(outcome=lowered)
    assert "50.00 EUR" in rehearse(support, "Refund A-1001", ctx)[-1].text
    assert ctx.proposals[1].params["amount_minor"] == 5000


def test_no_model_is_told_the_charge(shop: Shop):
    told = rehearse(support, "Where is order A-1001?", Rehearsal())
    assert "charge" not in told[-2].result


def test_the_tools_declare_what_they_do():
    effects = {tool.name: (tool.effect, tool.proposes) for tool in support.tools}
    assert effects == {
        "lookup_order": ("reads", ()),
        "check_refund_policy": ("reads", ()),
        "refund_order": ("proposes", ("refund.create", "mail.send")),
        "cancel_order": ("proposes", ("order.cancel",)),
    }
