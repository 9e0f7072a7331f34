"""The versions of a tenant's rules for an action: one draft, then published for good, to decide or only to record."""

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max

from agentops.audit.entries import Actor, record
from agentops.kernel.clock import Now
from agentops.kernel.problems import Conflict, Invalid, NotFound, NotYours
from agentops.tenancy.models import Tenant, User
from approvals.models import Policy
from operations.connectors.registry import ACTIONS

from .shape import lint


def draft_of(tenant: Tenant, action: str) -> Policy | None:
    return Policy.objects.filter(tenant=tenant, action=action, published_at=None).first()


def save_draft(
    tenant: Tenant, action: str, rules: Any, *, person: User, channel: str, replacing: str | None = None
) -> Policy:
    """Write the one draft of an action, over the one that there is.

    `replacing`: the digest of the draft that the person has changed, "" for none; without it whatever is there.
    Raises NotYours (no_right); NotFound (no_action); Invalid (faulty_rules) with each place; Conflict (draft_moved).
    """
    _entitled(tenant, person)
    _without_fault(action, rules)
    actor = Actor(f"user:{person.pk}", channel)
    try:
        with transaction.atomic():
            draft = Policy.objects.select_for_update(no_key=True).filter(
                tenant=tenant, action=action, published_at=None
            ).first()  # fmt: skip
            was = draft.digest if draft else ""
            if replacing is not None and replacing != was:
                raise _moved()
            draft = draft or Policy(tenant=tenant, action=action, number=_next_number(tenant, action))
            draft.rules, draft.created_by = rules, actor.name
            draft.save()
            record(tenant.id, "policy.drafted", "policy", str(draft), actor, before=was, after=draft.digest)
    except IntegrityError:  # two began at the same moment
        raise _moved() from None
    return draft


def publish(
    tenant: Tenant, action: str, *, digest: str, person: User, channel: str, log_only: bool = False
) -> Policy:
    """Let the draft with exactly that digest decide from now on, or, log-only, record what it would have decided.

    Raises NotYours (no_right); NotFound (no_action, no_draft); Invalid (faulty_rules); Conflict (draft_moved).
    """
    _entitled(tenant, person)
    draft = _existing(tenant, action)
    _without_fault(action, draft.rules)
    actor = Actor(f"user:{person.pk}", channel)
    with transaction.atomic():
        swapped = Policy.objects.filter(pk=draft.pk, published_at=None, digest=digest).update(
            published_at=Now(), published_by=actor.name, log_only=log_only
        )
        if not swapped:
            raise _moved()
        record(
            tenant.id,
            "policy.published",
            "policy",
            str(draft),
            actor,
            after=digest,
            detail={"log_only": log_only, "rules": len(draft.rules)},
        )
    draft.refresh_from_db()
    return draft


def discard(tenant: Tenant, action: str, *, person: User, channel: str) -> None:
    """Raises NotYours (no_right); NotFound (no_draft); Conflict (draft_moved)."""
    _entitled(tenant, person)
    draft = _existing(tenant, action)
    with transaction.atomic():
        removed, _ = Policy.objects.filter(pk=draft.pk, published_at=None, digest=draft.digest).delete()
        if not removed:
            raise _moved()
        actor = Actor(f"user:{person.pk}", channel)
        record(tenant.id, "policy.discarded", "policy", str(draft), actor, before=draft.digest)


def _next_number(tenant: Tenant, action: str) -> int:
    newest = Policy.objects.filter(tenant=tenant, action=action).aggregate(newest=Max("number"))["newest"]
    return (newest or 0) + 1


def _existing(tenant: Tenant, action: str) -> Policy:
    draft = draft_of(tenant, action)
    if draft is None:
        raise NotFound(f"{tenant} has no draft for {action}.", code="no_draft")
    return draft


def _without_fault(action: str, rules: Any) -> None:
    if action not in ACTIONS:
        raise NotFound(
            f"There is no action {action}; there are: {', '.join(sorted(ACTIONS))}.", code="no_action"
        )
    faults = lint(ACTIONS[action], rules)
    if faults:
        more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        raise Invalid(f"{faults[0]}{more}", code="faulty_rules", errors=[fault.problem for fault in faults])


def _entitled(tenant: Tenant, person: User) -> None:
    if not person.is_active or not person.has_perm("tenancy.manage_policies", tenant):
        raise NotYours(f"You may not write policies of {tenant}.", code="no_right")


def _moved() -> Conflict:
    return Conflict(
        "The draft is not the one that you have seen. Read it again, then go on.", code="draft_moved"
    )
