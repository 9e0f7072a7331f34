"""Write the OpenAPI document, as the snapshot test and client generators read it."""

import json
from typing import Any

from django.core.management.base import BaseCommand

from agentops.api.openapi import document


class Command(BaseCommand):
    help = "Writes the OpenAPI document of the REST API to standard output."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(document(), indent=2, ensure_ascii=False, sort_keys=True))
