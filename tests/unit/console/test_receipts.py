"""What a provider's receipt says in the four lines for people, whatever the provider wrote."""

import pytest

from agentops.console.operation_pages import proof
from operations.models import Operation


def test_a_receipt_is_told_in_lines() -> None:
    lines = proof(
        Operation(provider_ref="re_1"), {"amount": 48_900, "currency": "eur", "created": 1_790_000_000}
    )
    assert dict(lines) == {"Reference": "re_1", "Amount": "€489.00", "Made": "21 Sep 14:13:20"}


@pytest.mark.parametrize("created", [10**18, -(10**18), 10**30, "yesterday", None, [1]])
def test_a_moment_that_is_none_is_left_out(created: object) -> None:
    assert proof(Operation(provider_ref="re_1"), {"created": created}) == [("Reference", "re_1")]
