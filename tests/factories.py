"""Ordinary rows by the name of the ordinary case."""

import functools
import itertools
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import transaction

from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.sdk.agents import Agent, agent
from agentops.tenancy import principals, vault
from agentops.tenancy.access import create_tenant, join
from agentops.tenancy.models import Membership, Tenant, User
from agentops.tenancy.principals import Principal
from approvals.models import Policy, ReviewLimit
from operations.connectors.registry import CONNECTORS
from operations.grades import grade_of
from operations.hooks import secret_place
from operations.models import Connection, SettleLimit
from operations.services import connection_place
from runs.models import AgentRun
from runs.services import Start, start_run

_count = itertools.count(1)
REFUND_RULES = [
    {"code": "refund.over_ceiling", "when": "operation.amount_minor > 200000", "outcome": "deny", "risk": "high",
     "sentences": {"en": "Refunds above €2,000.00 are not made here."}},
    {"code": "refund.small", "when": "operation.amount_minor <= 5000", "outcome": "allow", "risk": "routine"},
    {"code": "refund.over_limit", "when": "true", "outcome": "require_approval", "risk": "elevated",
     "sentences": {"en": "The amount is above the automatic limit."}},
]  # fmt: skip
ALWAYS = [{"code": "always", "when": "true", "outcome": "allow", "risk": "routine"}]
ASK = [{"code": "ask", "when": "true", "outcome": "require_approval", "risk": "elevated"}]


def tenant(slug: str | None = None) -> Tenant:
    """A tenant with its key and the demo's rules; no connections."""
    slug = slug or f"tenant-{next(_count)}"
    made = create_tenant(slug, slug.title())
    policy(made, "refund.create", REFUND_RULES)
    policy(made, "order.cancel", ASK)
    policy(made, "mail.send", ALWAYS)
    policy(made, "note.add", ALWAYS)
    return made


def policy(of: Tenant, action: str, rules: list[dict[str, Any]], **more: Any) -> Policy:
    """A published version, after the ones there are."""
    number = Policy.objects.filter(tenant=of, action=action).count() + 1
    given = {"published_at": Now(), **more}
    return Policy.objects.create(tenant=of, action=action, number=number, rules=rules, **given)


@functools.cache
def _hashed(password: str) -> str:
    """A third of a second of work, once for each password."""
    return make_password(password)


def person(
    of: Tenant,
    role: Membership.Role = Membership.Role.REVIEWER,
    *,
    name: str | None = None,
    each_minor: int | None = 20_000,
    password: str = "",
) -> User:
    """Somebody with a role in a tenant and, for reviewers, a limit each in EUR."""
    name = name or f"person-{next(_count)}"
    user = User(username=name, first_name=name.title(), is_staff=True)
    user.password = _hashed(password) if password else make_password(None)
    user.save()
    join(of, user, role)
    if each_minor is not None:
        ReviewLimit.objects.create(tenant=of, reviewer=user, currency="EUR", each_minor=each_minor)
    return user


def settler(of: Tenant, *, each_minor: int = 20_000, **more: Any) -> User:
    """Somebody who may settle operations of unknown outcome, alone up to a limit in EUR."""
    user = person(of, Membership.Role.ENGINEER, each_minor=None, **more)
    SettleLimit.objects.create(tenant=of, person=user, currency="EUR", each_minor=each_minor)
    return user


def token(of: Tenant, *scopes: str, person: User | None = None) -> str:
    """The text of a new token; without scopes it has all of them."""
    _, text = principals.issue(of, f"token-{next(_count)}", scopes or principals.SCOPES, person=person)
    return text


def principal(of: Tenant) -> Principal:
    found = principals.authenticate(token(of), "rest")
    assert found is not None
    return found


def run(
    of: Tenant | Principal,
    input: str = "Where is order A-1001?",
    *,
    name: str = "support-agent",
    **start: Any,
) -> AgentRun:
    """A queued run, committed."""
    who = of if isinstance(of, Principal) else principal(of)
    known: Agent | None = agent(name)
    assert known is not None, f"no agent {name}"
    with transaction.atomic():
        made, _ = start_run(who, known, Start(input=input, **start), trace_id="0" * 31 + "1")
    return made


def connection(
    of: Tenant,
    connector: str,
    base_url: str,
    secret: str = "sk_test_agentops_demo",
    hook_secret: str = "",
    *,
    name: str = "",
    **fields: Any,
) -> Connection:
    """A connection in test mode whose connector keeps what it declares; with `grade=""` nobody has tried."""
    connection_id, kept = uuid7(), CONNECTORS[connector].abilities_at(base_url)
    key = vault.for_tenant(of.id)
    proved = [ability for ability, able in vars(kept).items() if able or ability == "look_up_lag_seconds"]
    tried = {
        "grade": grade_of(proved),
        "graded_version": CONNECTORS[connector].version,
        "proofs": [{"ability": ability, "outcome": "proved", "code": "", "values": {}} for ability in proved],
    }
    return Connection.objects.create(
        id=connection_id,
        tenant=of,
        name=name or connector,
        connector=connector,
        base_url=base_url,
        **{**tried, **fields},
        sealed_credential=sealed.seal_json(key, connection_place(connection_id), {"secret": secret}),
        sealed_hook_secret=sealed.seal_json(key, secret_place(connection_id), {"secret": hook_secret})
        if hook_secret
        else None,
    )
