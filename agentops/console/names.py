"""Names of people where records hold `user:7`."""

import re
from collections.abc import Mapping

from django.db.models import CharField, OuterRef, Subquery, Value
from django.db.models.functions import Cast, Coalesce, Concat, NullIf, Trim

from agentops.tenancy.models import User
from approvals.models import Decision

_PERSON = re.compile(r"user:\d+")


def names_in(tenant_id: int) -> dict[str, str]:
    """`user:7` -> name, for everybody who has a place in the tenant."""
    people = User.objects.filter(memberships__tenant_id=tenant_id).only(
        "id", "username", "first_name", "last_name"
    )
    return {f"user:{person.pk}": person.get_full_name() or person.username for person in people}


def decided_by(**of: OuterRef) -> Subquery:
    """Who answered a row's approval last, by name; for rows of another table say whose: `approval__operation_id=…`."""
    name = Trim(Concat("reviewer__first_name", Value(" "), "reviewer__last_name"))
    answers = Decision.objects.filter(**(of or {"approval_id": OuterRef("pk")})).order_by("-decided_at")
    named = answers.annotate(name=Coalesce(NullIf(name, Value("")), "reviewer__username"))
    return Subquery(named.values("name")[:1])


def with_names(text: str, names: Mapping[str, str]) -> str:
    return _PERSON.sub(lambda found: names.get(found.group(), found.group()), text)


def closed_by() -> Subquery:
    """Who closed a row's approval, by name: the last who answered, who lowered it or took it back; null for the system."""
    name = Trim(Concat("first_name", Value(" "), "last_name"))
    tagged = User.objects.annotate(tag=Concat(Value("user:"), Cast("pk", CharField())))
    people = tagged.filter(tag=OuterRef("closed_by"))
    return Subquery(people.annotate(name=Coalesce(NullIf(name, Value("")), "username")).values("name")[:1])
