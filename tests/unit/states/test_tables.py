"""The tables of legal moves: total, closed, with ends that are ends; enums and constraints name the same states."""

import pytest

from agentops.kernel.transitions import IllegalTransition, swap
from approvals import states as approvals
from approvals.models import Approval
from operations import states as operations
from operations.models import Operation
from runs import states as runs
from runs.models import AgentRun

MACHINES = {
    AgentRun: (runs.RunStatus, runs.MOVES, runs.TERMINAL),
    Operation: (operations.OperationStatus, operations.MOVES, operations.FINAL),
    Approval: (
        approvals.ApprovalStatus,
        approvals.MOVES,
        set(approvals.ApprovalStatus) - {approvals.ApprovalStatus.REQUESTED, approvals.ApprovalStatus.APPROVED},
    ),
}  # fmt: skip
machines = pytest.mark.parametrize("model", MACHINES, ids=lambda model: model.__name__)


@machines
def test_the_table_is_total_and_leads_only_to_states_that_exist(model):
    states, moves, _ = MACHINES[model]
    assert set(moves) == set(states)
    assert set().union(*moves.values()) <= set(states)
    assert model.MOVES is moves


@machines
def test_an_end_leads_nowhere_and_everything_else_leads_to_an_end(model):
    states, moves, ends = MACHINES[model]
    assert {state for state in states if not moves[state]} == set(ends)
    for state in states:
        reached, before = {state}, set()
        while reached != before:
            before, reached = reached, reached.union(*(moves[each] for each in reached))
        assert reached & set(ends)


@machines
def test_every_state_but_the_first_is_reached(model):
    states, moves, _ = MACHINES[model]
    first = next(iter(states))
    assert set().union(*moves.values()) | {first} == set(states)
    assert model._meta.get_field("status").default == first


@machines
def test_the_database_knows_the_same_states(model):
    states, _, _ = MACHINES[model]
    (known,) = [each for each in model._meta.constraints if each.name.endswith("status_known")]
    assert set(known.condition.children[0][1]) == {str(state) for state in states}


@machines
def test_a_move_that_the_table_does_not_know_is_refused_before_the_database_is_asked(model):
    states, moves, _ = MACHINES[model]
    for state in states:
        for to in states:
            if to != state and to not in moves[state]:
                with pytest.raises(IllegalTransition):
                    swap(model(status=state), to)


@machines
def test_a_row_that_exists_is_not_saved(model):
    row = model()
    row._state.adding = False
    with pytest.raises(IllegalTransition, match="swap"):
        row.save()


def test_what_was_sent_never_becomes_rejected_cancelled_or_expired():
    """NO-GUESS: these three say that nothing was sent."""
    unsent = {
        operations.OperationStatus.REJECTED,
        operations.OperationStatus.CANCELLED,
        operations.OperationStatus.EXPIRED,
    }
    for status in operations.IN_DOUBT:
        assert not operations.MOVES[status] & unsent
