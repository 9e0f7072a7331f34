"""Proposals in words: fields, facts, reasons, warnings and endings."""

from datetime import UTC, datetime
from typing import Any

import pytest

from approvals.endings import ending_sentence, lapse_sentence
from approvals.models import Approval
from approvals.sentences import (
    fact_sentence,
    field_label,
    field_value,
    reason_sentence,
    risk_label,
    title,
    warning_sentence,
)
from approvals.states import ApprovalStatus, Risk
from operations.models import Operation

EARLIER: dict[str, Any] = {
    "code": "same_target",
    "action": "refund.create",
    "target": "order:A-1002",
    "amount_minor": 2_000,
    "currency": "EUR",
    "status": "succeeded",
    "at": "2026-11-12T10:00:00Z",
}


def test_an_approval_and_its_sheet_have_one_title() -> None:
    operation = Operation(target_type="order", target_name="A-1002")
    approval = Approval(action="refund.create", operation=operation, amount_minor=48_900, currency="EUR")
    sheet = {"action": "refund.create", "target": "order:A-1002", "amount_minor": 48_900, "currency": "EUR"}
    assert title(approval) == title(sheet) == "Refund €489.00 on order A-1002"


def test_fields_have_labels_and_values_for_people() -> None:
    assert field_label("order_status") == "Order status"
    assert field_label("shelf_mark") == "Shelf mark"
    assert field_value(48_900, "money", "EUR") == "€489.00"
    assert field_value("in_transit", "code") == "on its way"
    assert field_value("in_transit", "code", language="zh") == "运输中"
    assert field_value("in_transit", "text") == "in_transit"
    assert field_value(None, "text") == ""


def test_a_fact_names_its_source_and_what_must_still_hold() -> None:
    fact = {"name": "refundable_minor", "value": 48_900, "source": "payments"}
    assert fact_sentence(fact, currency="EUR") == (
        "€489.00 of this charge can still be refunded, says payments."
    )
    guarded = fact | {"guard": {"relation": ">=", "bound": 48_900}}
    assert fact_sentence(guarded, currency="EUR").endswith("(at least €489.00 is needed).")


def test_a_fact_that_must_not_move_says_so() -> None:
    fact = {
        "name": "order_charge",
        "value": "ch_1_2",
        "source": "shop",
        "guard": {"relation": "==", "bound": "ch_1_2"},
    }
    assert fact_sentence(fact) == (
        "The order was paid with ch_1_2, says shop (must stay so until it is sent)."
    )
    assert fact_sentence(fact | {"value": "ch_9"}).endswith("(must be ch_1_2).")


def test_a_yes_and_a_no_have_a_sentence_each() -> None:
    fact = {"name": "is_cancelled", "value": False, "source": "shop"}
    assert fact_sentence(fact) == "The order is not cancelled, says shop."
    assert fact_sentence(fact | {"value": True}) == "The order is cancelled, says shop."
    assert fact_sentence({"name": "gift", "value": True, "source": "shop"}) == "Gift is yes, says shop."


def test_a_reason_is_told_in_the_tenants_own_words_in_the_readers_language() -> None:
    reason = {"code": "over_50", "sentence": {"en": "It is above €50.", "zh": "超过 50 欧元。"}}
    assert reason_sentence(reason) == "It is above €50."
    assert reason_sentence(reason, "zh-CN") == "超过 50 欧元。"
    assert reason_sentence(reason, "fr") == "It is above €50."
    assert "over_50" in reason_sentence({"code": "over_50"})


def test_a_warning_tells_what_was_done_before_and_when() -> None:
    assert warning_sentence(EARLIER) == "A refund of €20.00 on this order was made on 12 Nov."
    lost = EARLIER | {"status": "unknown"}
    assert "it may have happened" in warning_sentence(lost)
    assert warning_sentence({"code": "odd_hour"}) == "Look twice: odd hour."


def approval(status: str) -> Approval:
    return Approval(status=status, closed_at=datetime(2026, 11, 29, 14, 2, tzinfo=UTC))


def test_endings_are_told_apart() -> None:
    told = {ending_sentence(approval(status)) for status in ApprovalStatus.values}
    assert len(told) == len(ApprovalStatus.values)
    rejected = ending_sentence(approval("rejected"), by="lead", reason="No photo of the damage.")
    assert rejected == "Rejected by lead on 29 Nov at 14:02:00 UTC. “No photo of the damage.”"


def test_an_expiry_is_never_shown_as_a_refusal() -> None:
    sentence = ending_sentence(approval("expired"))
    assert sentence.startswith("Nobody decided in time")
    assert "no refusal" in sentence


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_every_risk_and_ending_has_its_words(language: str) -> None:
    for risk in Risk.values:
        assert risk_label(risk, language) != risk
    for status in ApprovalStatus.values:
        assert ending_sentence(approval(status), language) != status


CODES = (
    "guard_broken:refundable_minor",
    "approver_lost_right",
    "policy_asks_more",
    "lowered",
    "refund.over_ceiling",
)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_reason_to_ask_again_has_its_words(language: str) -> None:
    told = {lapse_sentence(code, language) for code in CODES}
    assert len(told) == len(CODES)
    assert not told & set(CODES)
    assert "refund.over_ceiling" in lapse_sentence(
        "refund.over_ceiling", language
    )  # a rule's own code is named


def test_what_no_longer_stands_is_told_apart_from_what_a_person_took_back() -> None:
    void, taken = approval("revoked"), approval("revoked")
    void.closed_by, void.closed_reason = "system", "requester_lost_right"
    taken.closed_by, taken.closed_reason = "user:7", "revoked"
    assert ending_sentence(void).endswith("Who asked for it may no longer ask.")
    assert "taken back by Lena" in ending_sentence(taken, by="Lena")
