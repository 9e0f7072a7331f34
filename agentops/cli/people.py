"""Who stands at the terminal: a person by name, with that person's rights, and the one sentence that a refusal is."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from agentops.audit.entries import Actor
from agentops.kernel.ids import parse
from agentops.kernel.problems import NotFound, NotYours, Problem
from agentops.tenancy.models import Tenant, User
from agentops.tenancy.principals import SCOPES, Principal
from runs.models import AgentRun

REFUSED, NO_RIGHT, NOT_THERE = 1, 3, 4  # exit codes; 2 is argparse's
CHANNEL = "cli"
_DOING = {
    "view_runs": "see runs",
    "cancel_runs": "cancel runs",
    "manage_policies": "write policies",
    "view_approvals": "see policies",
    "control_runs": "start, pause, resume, retry or move runs, pause agents, or restore credentials",
}


def person(name: str) -> User:
    found = User.objects.filter(username=name, is_active=True).first()
    if found is None:
        raise CommandError(
            f"There is no active person {name!r}. Give the name that signs in to the console.",
            returncode=NOT_THERE,
        )
    return found


def tenant_of(who: User, slug: str) -> Tenant:
    """The tenant named `slug`; without a name, the only one of that person."""
    mine = Tenant.objects.filter(memberships__user=who) if not who.is_superuser else Tenant.objects.all()
    found = list(mine.filter(slug=slug) if slug else mine.order_by("slug"))
    if len(found) != 1:
        known = ", ".join(mine.order_by("slug").values_list("slug", flat=True)) or "none"
        raise CommandError(
            f"Say which tenant with --tenant; {who.username} is in: {known}.", returncode=NOT_THERE
        )
    return found[0]


def require(who: User, permission: str, tenant: Tenant) -> None:
    if not who.has_perm(f"tenancy.{permission}", tenant):
        raise CommandError(
            f"{who.username} may not {_DOING[permission]} in {tenant}; a tenant administrator can give a role that may.",
            returncode=NO_RIGHT,
        )


def run_of(who: User, public_id: str, permission: str) -> AgentRun:
    """The run that the person names; one of a tenant where the person may not even see runs is not there."""
    key = parse("run", public_id)
    run = AgentRun.objects.select_related("tenant", "release").filter(pk=key).first() if key else None
    if run is None or not who.has_perm("tenancy.view_runs", run.tenant):
        raise CommandError(
            f"There is no run {public_id}; `run list` shows those that there are.", returncode=NOT_THERE
        )
    require(who, permission, run.tenant)
    return run


def actor(who: User) -> Actor:
    return Actor(f"user:{who.pk}", CHANNEL)


def principal(who: User, tenant: Tenant) -> Principal:
    return Principal(
        tenant=tenant, name=f"user:{who.pk}", channel=CHANNEL, scopes=frozenset(SCOPES), person=who
    )


@contextmanager
def one_sentence() -> Iterator[None]:
    """What the product refuses ends the command with its sentence and an exit code."""
    try:
        yield
    except Problem as problem:
        code = (
            NOT_THERE
            if isinstance(problem, NotFound)
            else NO_RIGHT
            if isinstance(problem, NotYours)
            else REFUSED
        )
        raise CommandError(problem.detail, returncode=code) from problem
