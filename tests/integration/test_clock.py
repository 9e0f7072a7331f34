"""The clock can be moved in a test database, and a start says so anywhere else."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from agentops.kernel.clock import now, refuse_moved_clock

pytestmark = pytest.mark.django_db


def test_the_clock_moves_here(move_clock):
    before = now()
    move_clock(3_600)
    assert 3_600 <= (now() - before).total_seconds() < 3_660
    refuse_moved_clock()


def test_a_clock_that_can_be_moved_is_refused_in_any_other_database(monkeypatch):
    with (
        connection.cursor() as cursor
    ):  # the same look at a function of that name, in a database of another name
        cursor.execute("CREATE SCHEMA other")
        cursor.execute(
            "CREATE FUNCTION other.current_database() RETURNS name LANGUAGE sql AS 'SELECT ''agentops''::name'"
        )
        cursor.execute("SET LOCAL search_path = other, public, pg_catalog")
        with pytest.raises(ImproperlyConfigured, match="can be moved"):
            refuse_moved_clock()
