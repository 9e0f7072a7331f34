"""What a rerun meets, status by status: joined, proposed again, or neither."""

from datetime import UTC, datetime

import pytest

from agentops.engine.outlook import Prospect, _fate
from operations.models import Operation
from operations.states import OperationStatus

AT = datetime(2026, 1, 1, tzinfo=UTC)
FATES = {
    "pending": ("reused", "asked"),
    "approved": ("reused", "allowed"),
    "executing": ("reused", "under_way"),
    "unknown": ("blocked", "in_doubt"),
    "escalated": ("blocked", "person_finds_out"),
    "succeeded": ("reused", "done"),
    "failed": ("proposed_again", "failed"),
    "cancelled": ("proposed_again", "cancelled"),
    "expired": ("proposed_again", "expired"),
}


def of(status: str, **more) -> tuple[str, str]:
    operation = Operation(
        status=status, action="refund.create", target_type="order", target_name="A-1", **more
    )
    prospect = Prospect(operation, operation, *_fate(operation))
    assert prospect.sentence.endswith(".")
    return prospect.fate.value, prospect.code


@pytest.mark.parametrize("status", OperationStatus.values)
def test_each_status_has_its_fate(status):
    if status == "rejected":  # rests on people, facts and the cool-down: an integration test
        assert of(status, reopened_at=AT, reopened_by="user:7") == ("proposed_again", "reopened")
        return
    assert of(status) == FATES[status]
    if status in ("pending", "approved", "executing"):
        assert of(status, in_doubt=True) == ("blocked", "in_doubt")


def test_what_was_done_is_done_once_more_only_when_a_person_reopens_it():
    assert of("succeeded", reversed_at=AT) == ("blocked", "undone")
    assert of("succeeded", reversed_at=AT, reopened_at=AT, reopened_by="user:7") == (
        "proposed_again",
        "reopened",
    )
