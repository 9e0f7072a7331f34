"""Write docs/roles.md: who may do what, from the grants that roles are made of."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from agentops.tenancy.access import PERMISSIONS
from agentops.tenancy.models import Membership, Tenant

HEAD = """# Who may do what

Generated from `agentops/tenancy/access.py` by `manage.py export_roles`; a test compares them.

A role in a tenant is a group, `<tenant>:<role>`, with grants on that tenant: never on a row, and never in another tenant. A
person has one role in a tenant, and beside it may be in groups of the tenant's own (`<tenant>:finance`), which give no right
but may be named by a rule as those who decide. A right to decide is bounded by limits of the person and of the group: each proposal, and a day in the
tenant's zone. Whoever has no limit for an action's currency approves no amount; a rejection needs none. Nobody approves what
they have asked for, through whatever token, agent or child run.

"""


def roles() -> str:
    names = dict(Tenant._meta.permissions)
    columns = list(Membership.Role)
    lines = [
        "| May | " + " | ".join(role.value.replace("_", " ") for role in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for codename, words in names.items():
        marks = ["yes" if codename in PERMISSIONS[role] else "" for role in columns]
        lines.append(f"| {words} (`{codename}`) | " + " | ".join(marks) + " |")
    return HEAD + "\n".join(lines) + "\n"


class Command(BaseCommand):
    help = "Write docs/roles.md from the code."

    def handle(self, *args: Any, **options: Any) -> None:
        place = Path(settings.BASE_DIR) / "docs" / "roles.md"
        place.write_text(roles())
        self.stdout.write(f"Written: {place.name}")
