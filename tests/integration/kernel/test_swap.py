"""`swap` moves a row from what was read, or not at all."""

import pytest
from django.db import DatabaseError, connection, transaction

from agentops.kernel.transitions import LostRace, swap
from runs.models import AgentRun
from runs.states import RunStatus
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def run():
    return AgentRun.objects.get(pk=factories.run(factories.tenant()).pk)


def test_a_move_counts_the_version_up_and_brings_the_object_up_to_date(run):
    AgentRun.objects.filter(pk=run.pk).update(error_code="meanwhile")
    swap(run, RunStatus.RUNNING, blocked_on=["operation"])
    assert (run.status, run.version, run.blocked_on, run.error_code) == (
        "running",
        1,
        ["operation"],
        "meanwhile",
    )


def test_a_row_that_was_moved_meanwhile_is_not_moved_from_an_old_reading(run):
    old = AgentRun.objects.get(pk=run.pk)
    swap(run, RunStatus.RUNNING)
    with pytest.raises(LostRace):
        swap(old, RunStatus.CANCELLED)
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.RUNNING


def test_a_row_that_was_touched_and_kept_its_status_is_not_moved_from_an_old_reading(run):
    old = AgentRun.objects.get(pk=run.pk)
    swap(run, run.status, error_code="x")
    with pytest.raises(LostRace):
        swap(old, old.status, error_code="y")
    assert AgentRun.objects.get(pk=run.pk).error_code == "x"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("status = 'sleeping'", "run_status_known"),
        (
            "ending = 'failed', lease_owner = 'x', lease_expires_at = agentops_now()",
            "run_ending_holds_no_lease",
        ),
        ("status = 'completed', ready_at = NULL", "run_finished_iff_terminal"),
        ("finished_at = agentops_now()", "run_finished_iff_terminal"),
        ("open_effects = -1", "run_open_effects_not_negative"),
        (
            "open_effects = 1, status = 'failed', finished_at = agentops_now(), ready_at = NULL",
            "run_ends_without_open_effects",
        ),
        ("status = 'failed', finished_at = agentops_now()", "run_ends_without_lease"),
        ("lease_owner = 'x'", "run_lease_whole"),
        ("inbox_taken = 1", "run_inbox_taken_exists"),
    ],
)
def test_the_database_holds_the_rules_of_a_run_by_their_names(run, change, rule):
    with pytest.raises(DatabaseError, match=rule), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE runs_agentrun SET {change} WHERE id = %s", [run.pk])
