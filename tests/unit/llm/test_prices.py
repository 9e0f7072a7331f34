"""Costs are whole millionths of a dollar, never rounded down, from the operator's list before the published one."""

from decimal import Decimal

import pytest

from agentops.llm import parse_prices, worst_cost_microusd
from agentops.llm.prices import UNKNOWN, Price, Tokens, cost_microusd


def test_offline_costs_nothing():
    assert cost_microusd("offline", Tokens(1000, 1000), {}) == 0
    assert worst_cost_microusd("offline", 10**6, 10**6) == 0


def test_published_prices_are_used():
    assert cost_microusd("anthropic:claude-sonnet-4-5", Tokens(1000, 200), {}) == 6000
    assert cost_microusd("openai-chat:gpt-5", Tokens(1000, 200), {}) == 3250


def test_the_providers_dated_name_is_asked_for_first():
    dated = cost_microusd("openai:alias", Tokens(1000, 200), {}, reported_name="gpt-5-2025-08-07")
    assert dated == cost_microusd("openai:gpt-5", Tokens(1000, 200), {})


def test_cached_tokens_are_priced_apart():
    fresh = cost_microusd("anthropic:claude-sonnet-4-5", Tokens(1000, 0), {})
    assert cost_microusd("anthropic:claude-sonnet-4-5", Tokens(1000, 0, cache_read=1000), {}) < fresh


def test_a_fraction_is_rounded_up():
    own = {"openai:tiny": Price(Decimal("0.05"), Decimal("0.4"))}
    assert cost_microusd("openai:tiny", Tokens(1, 0), own) == 1
    assert cost_microusd("openai:tiny", Tokens(20, 0), own) == 1
    assert cost_microusd("openai:tiny", Tokens(21, 0), own) == 2


def test_own_prices_come_first():
    own = parse_prices(" openai:gpt-5 = 1/2 ,anthropic:x=0.5/1.5,")
    assert own == {
        "openai:gpt-5": Price(Decimal(1), Decimal(2)),
        "anthropic:x": Price(Decimal("0.5"), Decimal("1.5")),
    }
    assert cost_microusd("openai:gpt-5", Tokens(10, 10), own) == 30


def test_an_unknown_model_errs_on_the_dear_side():
    assert cost_microusd("openai:nobody-knows", Tokens(10, 10), {}) == 10 * (UNKNOWN.input + UNKNOWN.output)


def test_the_worst_price_covers_every_turn_within_it():
    worst = worst_cost_microusd("anthropic:claude-sonnet-4-5", 4000, 2048)
    assert worst >= cost_microusd("anthropic:claude-sonnet-4-5", Tokens(4000, 2048), {}) > 0


@pytest.mark.parametrize(
    "text", ["openai:x", "openai:x=1", "openai:x=a/b", "openai:x=-1/2", "openai:x=NaN/1"]
)
def test_a_price_that_cannot_be_read_stops_the_start(text: str):
    with pytest.raises(ValueError, match="AGENTOPS_MODEL_PRICES"):
        parse_prices(text)
