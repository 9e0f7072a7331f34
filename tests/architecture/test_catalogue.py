"""The walls of the schema, read from PostgreSQL's own catalogue."""

from pathlib import Path

import pytest
from django.apps import apps
from django.db import DatabaseError, connection, transaction

from agentops.cli.management.commands.export_columns import columns
from agentops.kernel.roles import append_only_tables
from tests import factories

OURS = ("tenancy", "audit", "runs", "operations", "approvals", "webhooks")
ORDER = {
    name: place
    for place, name in enumerate(("tenancy", "audit", "runs", "operations", "approvals", "webhooks"))
}
WITHOUT_TENANT = {"tenancy_user", "tenancy_tenant", "tenancy_user_groups", "tenancy_user_user_permissions"}
# Looked up before the tenant is known, or unique by being an id of the application's.
UNIQUE_WITHOUT_TENANT = {"apitoken.hash"}
APPEND_ONLY = {
    "audit_auditentry",
    "audit_auditblock",
    "operations_attempt",
    "operations_finding",
    "approvals_decision",
    "approvals_policydecision",
}

pytestmark = pytest.mark.django_db


def models():
    return [model for label in OURS for model in apps.get_app_config(label).get_models()]


def test_every_row_names_its_tenant():
    for model in models():
        if model._meta.db_table not in WITHOUT_TENANT:
            assert any(field.column == "tenant_id" for field in model._meta.fields), model


def test_relations_point_down_the_layers():
    for model in models():
        for field in model._meta.fields:
            target = field.related_model
            if target is not None and target._meta.app_label in ORDER:
                assert ORDER[target._meta.app_label] <= ORDER[model._meta.app_label], field


def test_no_row_may_point_into_another_tenant():
    """Each key to a tenant's row is, in the database, a key of (tenant, row)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, array_agg(a.attname ORDER BY k.n) FROM pg_constraint c"
            " CROSS JOIN unnest(conkey) WITH ORDINALITY AS k(attnum, n)"
            " JOIN pg_attribute a ON a.attrelid = conrelid AND a.attnum = k.attnum"
            " WHERE contype = 'f' GROUP BY c.oid, conrelid"
        )
        keys = {(table, tuple(columns)) for table, columns in cursor.fetchall()}
    for model in models():
        for field in model._meta.fields:
            target = field.related_model
            if target is None or target._meta.app_label not in ORDER or field.column == "tenant_id":
                continue
            if target._meta.db_table in WITHOUT_TENANT:
                continue
            assert (model._meta.db_table, ("tenant_id", field.column)) in keys, field


def test_a_key_into_another_tenant_is_refused_by_the_database():
    mine, theirs = factories.tenant(), factories.tenant()
    run = factories.run(theirs)
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE runs_agentrun SET tenant_id = %s WHERE id = %s", [mine.id, run.id])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_unique_keys_begin_with_the_tenant_or_its_row():
    for model in models():
        if model._meta.db_table in WITHOUT_TENANT:
            continue
        for constraint in model._meta.constraints:
            fields = getattr(constraint, "fields", ())
            if fields:
                assert fields[0] in ("tenant", "run"), constraint
        for field in model._meta.fields:
            if field.unique and not field.primary_key:
                assert f"{model._meta.model_name}.{field.name}" in UNIQUE_WITHOUT_TENANT, field


def test_what_people_and_models_say_is_sealed():
    """Columns that can hold words are bytea; clear text columns are codes, names and ids of bounded length."""
    for model in models():
        for field in model._meta.fields:
            assert field.get_internal_type() != "TextField", f"{field}: seal it, or bound it if it is a code"


def test_the_list_of_what_rests_in_the_clear_is_that_of_the_models():
    path = Path(__file__).parents[2] / "docs/columns.md"
    assert path.read_text() == columns(), "run manage.py export_columns"


@pytest.mark.parametrize("table", sorted(APPEND_ONLY))
def test_append_only_tables_refuse_change_from_everyone(table):
    assert table in append_only_tables()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT has_table_privilege('agentops_app', %s, p) FROM unnest(ARRAY['INSERT','SELECT','UPDATE','DELETE','TRUNCATE']) p",
            [table],
        )
        assert [allowed for (allowed,) in cursor.fetchall()] == [True, True, False, False, False]
    for part in [name for name in append_only_tables() if name.startswith(table)]:
        with pytest.raises(DatabaseError, match="refused by rule"), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"TRUNCATE {part} CASCADE")


def test_the_owner_cannot_alter_an_audit_entry_unnoticed():
    factories.run(factories.tenant())
    for statement in ("UPDATE audit_auditentry SET verb = 'x'", "DELETE FROM audit_auditentry"):
        with pytest.raises(DatabaseError, match="refused by rule"), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(statement)


def test_logs_of_runs_and_operations_are_partitioned_by_month():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.relname, count(*) FROM pg_inherits i JOIN pg_class p ON p.oid = inhparent GROUP BY 1"
        )
        parts = dict(cursor.fetchall())
    for table in ("runs_step", "runs_runevent", "operations_attempt", "operations_finding"):
        assert parts[table] >= 4, table


def test_a_terminal_run_stays_as_it_is():
    run = factories.run(factories.tenant())
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_agentrun SET status = 'cancelled', finished_at = agentops_now(), ready_at = NULL WHERE id = %s",
            [run.id],
        )
        with pytest.raises(DatabaseError, match="refused by rule"), transaction.atomic():
            cursor.execute(
                "UPDATE runs_agentrun SET status = 'running', finished_at = NULL WHERE id = %s", [run.id]
            )
