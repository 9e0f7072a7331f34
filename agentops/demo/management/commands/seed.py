"""Make the demo's tenants, people, rules, connections and tokens, and write demo.json."""

from typing import Any

import httpx
from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand, CommandError

from agentops.demo.seed import seed


class Command(BaseCommand):
    help = "Seed the demo (idempotent) and write AGENTOPS_DATA/demo.json."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.AGENTOPS_DEMO:
            raise CommandError("This seeds the demo. Set AGENTOPS_DEMO=1 (make up does), never on real data.")
        for refused in checks.run_checks(tags=["start"]):
            raise CommandError(refused.msg)
        path = settings.AGENTOPS_DATA / "demo.json"
        try:
            written = seed(path)
        except httpx.HTTPError as error:
            raise CommandError(
                f"The shop at {settings.AGENTOPS_PROVIDER_URL or '(AGENTOPS_PROVIDER_URL is not set)'} does not answer"
                f" ({type(error).__name__}). Start it first; `make up` does."
            ) from None
        self.stdout.write(
            f"seeded {len(written['orders'])} orders and {len(written['accounts'])} accounts: {path}"
        )
