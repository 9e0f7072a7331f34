"""Budget in slices: a run holds what it has taken from its parent or its tenant, and spends only what it holds.

Of a run's budget `slice` is taken so far (None: all of it is its own), `spent` is what its turns have cost, `reserved` what its
present turn may cost, and `given` what its children hold or have used up. A budget of 0 has no limit.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import F

from agentops.sdk.errors import Terminal

from .models import AgentRun, Slot

SLICE_PARTS = (
    4  # a slice is at least this part of the budget, so that a long run does not ask before each turn
)

# Before a turn is asked its worst price is set aside. A second try of it, in this life or a later one, sets the same aside.
RESERVE = """
WITH run AS (
  SELECT id, budget_microusd = 0
    OR COALESCE(slice_microusd, budget_microusd) - spent_microusd - given_microusd >= %(worst)s AS covered
  FROM runs_agentrun WHERE id = %(run_id)s AND lease_owner = %(owner)s AND lease_epoch = %(epoch)s AND ending = ''
  FOR NO KEY UPDATE
)
UPDATE runs_agentrun SET
  reserved_microusd = CASE WHEN run.covered THEN %(worst)s ELSE reserved_microusd END
FROM run WHERE runs_agentrun.id = run.id RETURNING run.covered
"""

type Holder = AgentRun | Slot


def share(parent: AgentRun, wanted_microusd: int) -> int:
    """The budget of a child: what it wants, and never more than its parent's own."""
    return min((limit for limit in (wanted_microusd, parent.budget_microusd) if limit), default=0)


def lineage(run: AgentRun) -> list[Holder]:
    """Who lent each other what `run` holds, locked in that order: the tenant's slot where it has a limit, then runs from
    the first one down to `run` itself.
    """
    ids: list[UUID] = [run.id]
    above = run
    while above.slice_microusd is not None and above.parent is not None:
        above = above.parent
        ids.insert(0, above.id)
    slots: list[Holder] = []
    if above.slice_microusd is not None:
        slots = list(Slot.objects.select_for_update(no_key=True).filter(tenant_id=run.tenant_id))
    rows = AgentRun.objects.select_for_update(no_key=True).filter(tenant_id=run.tenant_id, pk__in=ids)
    return [*slots, *rows.order_by("pk")]


def take_slice(holders: Sequence[Holder], needed_microusd: int) -> bool:
    """Let the last of the locked `holders` have `needed` beyond what it has spent and given; False where it may not have it.

    It takes a whole slice if its lender has one, else just what it needs; who lends and runs dry takes one itself.
    """
    *lenders, run = holders
    assert isinstance(run, AgentRun)
    if not run.budget_microusd or run.slice_microusd is None:
        held = run.budget_microusd
        return not held or held - run.spent_microusd - run.given_microusd >= needed_microusd
    missing = needed_microusd - (run.slice_microusd - run.spent_microusd - run.given_microusd)
    if missing <= 0:
        return True
    rest = run.budget_microusd - run.slice_microusd
    if missing > rest:
        return False
    for amount in (min(max(missing, run.budget_microusd // SLICE_PARTS), rest), missing):
        if give(lenders, amount):
            _add(run, slice_microusd=amount)
            AgentRun.objects.filter(pk=run.pk).update(aftermath=True)
            return True
    return False


def give(holders: Sequence[Holder], amount_microusd: int) -> bool:
    """Let the last of the locked `holders` give that much away; False, and nothing is given, where it has not got it."""
    giver = holders[-1]
    if isinstance(giver, Slot):
        limit = giver.tenant.budget_microusd
        if limit is not None and giver.given_microusd + amount_microusd > limit:
            return False
    elif not take_slice(holders, amount_microusd + giver.reserved_microusd):
        return False
    _add(giver, given_microusd=amount_microusd)
    return True


def give_for_good(parent: AgentRun, amount_microusd: int) -> None:
    """The share of a detached child, which gives nothing back; raises Terminal (`budget`) where there is not so much left."""
    if not give(lineage(parent), amount_microusd):
        raise Terminal("There is not enough budget left to start that run.", code="budget")


def give_back(holders: Sequence[Holder]) -> None:
    """The last of the locked `holders` has ended: what it has not used goes to its lender, and past those that have ended.

    Used is also what a turn that never came back may have cost.
    """
    *lenders, run = holders
    assert isinstance(run, AgentRun)
    if run.slice_microusd is None:
        return
    rest = run.slice_microusd - run.spent_microusd - run.reserved_microusd - run.given_microusd
    for lender in reversed(lenders):
        _add(lender, given_microusd=-min(max(rest, 0), lender.given_microusd))
        if isinstance(lender, AgentRun) and not (lender.is_terminal and not lender.aftermath):
            break  # it gives back itself, when it ends


def _add(holder: Holder, **amounts: int) -> None:
    for column, amount in amounts.items():
        setattr(holder, column, getattr(holder, column) + amount)
    changes: Any = {column: F(column) + amount for column, amount in amounts.items()}
    if isinstance(holder, Slot):
        Slot.objects.filter(pk=holder.pk).update(**changes)
    else:
        AgentRun.objects.filter(pk=holder.pk).update(**changes)
