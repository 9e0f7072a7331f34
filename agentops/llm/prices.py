"""What a turn costs, in millionths of a US dollar and never rounded down.

The operator's own prices come first, then those published (bundled with genai-prices; nothing is downloaded). A model
that neither knows is counted at a price above most others, so that a budget errs by stopping early.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from agentops.llm.routes import OFFLINE, split

TOKENS_PER_CHAR = 1
"""An upper bound in practice: European text has about a quarter of a token per character, Chinese about one."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, which is millionths of a dollar per token."""

    input: Decimal
    output: Decimal


UNKNOWN = Price(Decimal(30), Decimal(150))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Cached tokens are part of `input`; they are priced apart where the price list does so."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


def parse_prices(text: str) -> dict[str, Price]:
    """`AGENTOPS_MODEL_PRICES`: `openai:my-model=2.5/10, …`, US dollars per million input and output tokens."""
    prices = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        model, _, pair = entry.partition("=")
        per_input, _, per_output = pair.partition("/")
        try:
            price = Price(Decimal(per_input.strip()), Decimal(per_output.strip()))
        except InvalidOperation:
            price = Price(Decimal(-1), Decimal(-1))
        if not (price.input.is_finite() and price.output.is_finite() and min(price.input, price.output) >= 0):
            raise ValueError(
                f"AGENTOPS_MODEL_PRICES: write {entry!r} as provider:name=INPUT/OUTPUT in US dollars."
            )
        prices[model.strip()] = price
    return prices


def load() -> None:
    """Read the published list now: it takes a third of a second, and the library asks for it too."""
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()


def cost_microusd(
    model: str, tokens: Tokens, own: Mapping[str, Price], *, reported_name: str | None = None
) -> int:
    """The price of one turn; `reported_name` is the provider's dated name of the model, asked for first."""
    if model == OFFLINE:
        return 0
    if model in own:
        return _at(own[model], tokens)
    provider, name = split(model)
    for known in filter(None, (reported_name, name)):
        published = _published(provider.removesuffix("-chat"), known, tokens)
        if published is not None:
            return published
    return _at(UNKNOWN, tokens)


def worst_cost_microusd(
    model: str, input_chars: int, max_output_tokens: int, own: Mapping[str, Price] | None = None
) -> int:
    """What a turn may cost at most, for a reservation before it is asked."""
    return cost_microusd(model, Tokens(input_chars * TOKENS_PER_CHAR, max_output_tokens), own or {})


def _at(price: Price, tokens: Tokens) -> int:
    return math.ceil(price.input * tokens.input + price.output * tokens.output)


def _published(provider: str, name: str, tokens: Tokens) -> int | None:
    # Here and not above: the web process asks for no prices and need not pay for loading the list.
    from genai_prices import Usage, calc_price

    usage = Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cache_read or None,
        cache_write_tokens=tokens.cache_write or None,
    )
    try:
        price = calc_price(usage, name, provider_id=provider)
    except (LookupError, ValueError):
        return None
    return math.ceil(price.total_price * 1_000_000)
