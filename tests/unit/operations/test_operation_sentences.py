"""Operations in words: money, titles, and what became of them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from operations.models import Operation
from operations.sentences import (
    action_title,
    finding_sentence,
    money,
    status_label,
    status_sentence,
    target_words,
    title_of,
)
from operations.states import OperationStatus, Source, Verdict

AT = datetime(2026, 11, 29, 14, 2, 11, tzinfo=UTC)


def operation(status: str, **changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "action": "refund.create",
        "target_type": "order",
        "target_name": "A-1002",
        "amount_minor": 48_900,
        "currency": "EUR",
    }
    return Operation(status=status, **fields | changes)


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (48_900, "EUR", "€489.00"),
        (259_900, "EUR", "€2,599.00"),
        (5, "USD", "$0.05"),
        (0, "GBP", "£0.00"),
        (-2_000, "EUR", "−€20.00"),
        (1_500, "JPY", "¥1,500"),
        (12_345, "KWD", "KWD\u00a012.345"),
        (1_234_567, "CHF", "CHF\u00a012,345.67"),
    ],
)
def test_money_has_its_currency_and_the_currency_its_own_decimals(
    minor: int, currency: str, text: str
) -> None:
    assert money(minor, currency) == text


def test_a_title_names_amount_and_target() -> None:
    assert action_title(operation("pending")) == "Refund €489.00 on order A-1002"
    assert action_title(operation("pending"), "zh-CN") == "为订单 A-1002 退款 €489.00"
    assert title_of("order.cancel", "order:A-1002") == "Cancel order A-1002"
    assert title_of("mail.send", "customer:A-C1002") == "Send a mail to customer A-C1002"


def test_an_unknown_action_is_shown_by_its_name() -> None:
    assert title_of("voucher.issue", "shop_card:7", 100, "EUR") == "voucher.issue €1.00 on shop card 7"


def test_a_target_whose_name_says_it_all_is_one_word() -> None:
    assert target_words("notes", "notes") == "notes"


def test_an_unknown_outcome_says_that_it_may_have_happened() -> None:
    lost = operation("unknown", next_attempt_at=datetime(2026, 11, 29, 14, 2, 31, tzinfo=UTC))
    assert status_sentence(lost, sent_at=AT) == (
        "We sent it at 14:02:11 UTC and got no answer. It may have happened. We look it up again at 14:02:31 UTC."
    )
    assert "It may have happened" in status_sentence(operation("unknown"))


def test_an_expiry_is_no_refusal() -> None:
    assert status_sentence(operation("expired")).endswith("That is no refusal.")


def test_a_success_names_the_reference_and_a_later_reversal_is_told() -> None:
    assert status_sentence(operation("succeeded", provider_ref="re_91")).endswith("re_91.")
    undone = operation("succeeded", provider_ref="re_91", reversed_at=AT)
    assert status_sentence(undone) == "It happened as re_91, and was undone at 14:02:11 UTC."


def test_a_failure_gives_the_reason() -> None:
    failed = operation("failed", error_detail="The charge is refunded already.")
    assert status_sentence(failed) == "It did not happen. The charge is refunded already."


def test_a_held_approval_says_until_when_it_can_be_taken_back() -> None:
    assert "14:02:11 UTC" in status_sentence(operation("approved", dispatch_after=AT))
    retried = operation("approved", dispatch_after=AT, attempts=1, next_attempt_at=AT)
    assert status_sentence(retried).startswith("The last try surely had no effect.")


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("status", OperationStatus.values)
def test_every_status_has_its_words(status: str, language: str) -> None:
    assert status_label(status, language) != status
    assert status_sentence(operation(status), language)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("source", Source.values)
@pytest.mark.parametrize("verdict", Verdict.values)
def test_every_finding_has_its_words(source: str, verdict: str, language: str) -> None:
    sentence = finding_sentence({"source": source, "verdict": verdict, "provider_ref": "re_91"}, language)
    assert sentence.endswith("(re_91).")
    assert verdict not in sentence.split()
