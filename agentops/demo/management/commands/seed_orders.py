"""Let the demo's shop make more orders, and print them as JSON."""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.demo.seed import more_orders


class Command(BaseCommand):
    help = "Make more orders for a tenant and print them as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, help="the tenant's slug, for example acme")
        parser.add_argument("--count", type=int, required=True, help="how many, 1 to 10,000")
        parser.add_argument("--amount", help="of each, in euro: 24.90; without it they vary")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["count"] <= 10_000:
            raise CommandError("--count takes a number from 1 to 10,000.")
        try:
            orders = more_orders(options["tenant"], options["count"], _minor(options["amount"]))
        except httpx.HTTPStatusError as error:
            raise CommandError(f"The shop refused: {error.response.text[:300]}") from None
        except httpx.HTTPError as error:
            raise CommandError(
                f"The shop does not answer ({type(error).__name__}). Is `make up` running, on this AGENTOPS_DATA?"
            ) from None
        self.stdout.write(json.dumps(orders, indent=2))


def _minor(amount: str | None) -> int | None:
    if amount is None:
        return None
    try:
        minor = Decimal(amount) * 100
    except InvalidOperation:
        raise CommandError("--amount takes euro, for example 24.90.") from None
    if minor != minor.to_integral_value() or minor <= 0:
        raise CommandError("--amount takes euro with at most two decimals, above zero.")
    return int(minor)
