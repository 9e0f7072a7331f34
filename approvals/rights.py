"""Who may decide: a right in the tenant, the group that a rule names, not among those who asked, and within the limits."""

from collections.abc import Iterable, Mapping, Sequence

from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel.ids import parse, show
from agentops.kernel.problems import Conflict, NotYours
from agentops.tenancy.models import ApiToken, Tenant, User
from runs.models import AgentRun

from . import limits, queries
from .models import Approval
from .states import VerdictOfPerson

WRITES = frozenset({"runs:write", "operations:write"})


def why_not(person: User, approval: Approval, *, requesters: Iterable[str] = ()) -> str:
    """Why the person may not say yes: a code, "" where they may. `requesters`: who asks beside those on record."""
    if code := why_no_answer(person, approval, requesters=requesters):
        return code
    groups = limits.groups_of(person, approval.tenant)
    if not is_in_group(approval, groups):
        return "other_group"
    return limits.exceeded(approval, limits.applying(person, approval, groups))


def why_no_answer(person: User, approval: Approval, *, requesters: Iterable[str] = ()) -> str:
    """The same for a no, which needs neither a group nor a limit: a group that is gone must not keep it open."""
    if code := why_no_part(person, approval, requesters=requesters):
        return code
    return "already_answered" if queries.has_answered(person, approval) else ""


def why_no_part(person: User, approval: Approval, *, requesters: Iterable[str] = ()) -> str:
    """The same for whoever would change the question, not answer it: lower it, give it more time, take a yes back."""
    if not may_decide(person, approval.tenant):
        return "no_right"
    return "own_request" if f"user:{person.pk}" in {*approval.requesters, *requesters} else ""


def take_part(actor: Actor, approval: Approval, *, requesters: Iterable[str] = ()) -> None:
    """Under the lock once more, with no cached permissions: a right that was lost meanwhile is none. Raises NotYours."""
    person = User.objects.get(pk=int(actor.name.removeprefix("user:")))
    if code := why_no_part(person, approval, requesters=requesters):
        raise NotYours(refusal(code, approval), code=code)


def may_decide(person: User, tenant: Tenant) -> bool:
    return person.is_active and person.has_perm("tenancy.decide_approvals", tenant)


def is_in_group(approval: Approval, groups: Iterable[str]) -> bool:
    named = {approval.group, approval.escalate_to} if approval.escalated_at else {approval.group}
    return not approval.group or bool(named.intersection(groups))


def entitled(
    approval: Approval, reviewer: User, answer: VerdictOfPerson, *, requesters: Iterable[str] = ()
) -> None:
    """Raises NotYours: no_right, own_request, and for a yes other_group, over_limit, over_day. Conflict: already_answered."""
    rule = why_not if answer == VerdictOfPerson.APPROVE else why_no_answer
    code = rule(reviewer, approval, requesters=requesters)
    if code == "already_answered":
        raise Conflict(refusal(code, approval), code=code)
    if code:
        raise NotYours(refusal(code, approval), code=code)


def refusal(code: str, approval: Approval) -> str:
    """The sentence for a code of `why_not`; above a limit it says who can."""
    match code:
        case "no_right":
            return f"You may not decide proposals of {approval.tenant}."
        case "own_request":
            return "You asked for this yourself, so somebody else decides."
        case "already_answered":
            return "You have answered this proposal already; another person is needed."
    people = queries.who_can_approve(approval)
    able = ", ".join(person.get_full_name() or person.username for person in people)
    match code:
        case "other_group":
            why = f"A rule asks the group {approval.group}, and you are not in it."
        case "over_day":
            why = "With this, more would be approved today than your limit allows."
        case _:
            why = "This is above your limit."
    return f"{why} {able or 'Nobody with a high enough limit'} can approve it."


def note_refusal(approval: Approval, reviewer: User, channel: str, code: str) -> None:
    with transaction.atomic():
        record(
            approval.tenant_id,
            "approval.refused_reviewer",
            "approval",
            approval.public_id,
            Actor(f"user:{reviewer.pk}", channel),
            detail={"code": code},
            security=code == "no_right",
        )


def scopes_of(run: AgentRun) -> dict[str, list[str]]:
    """The rights to write of every principal on the run's chain, as they are now; one that was taken out has none.

    A token that ran out has kept what it had: it asked while it lived, and everybody knew its time.
    """
    names = {each.principal for each in _lineage(run)}
    tokens = {key for name in names if (key := parse("tok", name.removeprefix("token:")))}
    people = [int(name[5:]) for name in names if name.startswith("user:") and name[5:].isdecimal()]
    rows = ApiToken.objects.filter(tenant_id=run.tenant_id, pk__in=tokens).select_related("person")
    found = {
        f"token:{show('tok', row.id)}": sorted(WRITES.intersection(row.scopes)) if _stands(row) else []
        for row in rows
    }
    for person in User.objects.filter(pk__in=people):
        found[f"user:{person.pk}"] = ["person"] if person.is_active else []
    return found


def _lineage(run: AgentRun) -> list[AgentRun]:
    return [run] if run.parent is None else [run, *_lineage(run.parent)]


def _stands(token: ApiToken) -> bool:
    return token.revoked_at is None and (token.person is None or token.person.is_active)


def lost_by_requester(run: AgentRun, then: Mapping[str, Sequence[str]] | None) -> bool:
    """Whether who asked may no longer ask: a right to write that was there `then` is gone; None: nobody kept what was."""
    present = scopes_of(run)
    if then is None:
        return any(not scopes for scopes in present.values())
    return any(not set(scopes) <= set(present.get(name, ())) for name, scopes in then.items())
