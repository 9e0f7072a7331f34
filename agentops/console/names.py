"""Names of people where records hold `user:7`."""

import re
from collections.abc import Mapping

from agentops.tenancy.models import User

_PERSON = re.compile(r"user:\d+")


def names_in(tenant_id: int) -> dict[str, str]:
    """`user:7` -> name, for everybody who has a place in the tenant."""
    people = User.objects.filter(memberships__tenant_id=tenant_id).only(
        "id", "username", "first_name", "last_name"
    )
    return {f"user:{person.pk}": person.get_full_name() or person.username for person in people}


def with_names(text: str, names: Mapping[str, str]) -> str:
    return _PERSON.sub(lambda found: names.get(found.group(), found.group()), text)
