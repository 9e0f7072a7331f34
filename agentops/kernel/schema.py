"""Migration operations for walls that Django has no words for: tenant keys, partitions, append-only, final rows."""

from django.db.migrations import RunSQL

_NOTHING = RunSQL.noop


def tenant_key(table: str, column: str, to: str) -> RunSQL:
    """`(tenant_id, column)` of `table` must be `(tenant_id, id)` of `to`: no row points into another tenant."""
    name = f"{table}_{column}_same_tenant"
    return RunSQL(
        f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY (tenant_id, {column})"
        f" REFERENCES {to} (tenant_id, id) DEFERRABLE INITIALLY IMMEDIATE",
        f"ALTER TABLE {table} DROP CONSTRAINT {name}",
    )


def partitioned(table: str, column: str) -> RunSQL:
    """Make the (empty) `table` partitioned by months of the UUIDv7 in `column`, plus a default partition."""
    return RunSQL(
        f"ALTER TABLE {table} RENAME TO {table}_plain;"
        f"CREATE TABLE {table} (LIKE {table}_plain INCLUDING ALL) PARTITION BY RANGE ({column});"
        f"DROP TABLE {table}_plain;"
        f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT;"
        f"INSERT INTO kernel_partitioned (name) VALUES ('{table}');"
        "SELECT agentops_open_partitions(2);",
        _NOTHING,
    )


def append_only(table: str) -> RunSQL:
    """Rows of `table` are neither changed nor removed: by rights for the application, by triggers for everyone."""
    return RunSQL(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}"
        " FOR EACH ROW EXECUTE FUNCTION agentops_refuse_change();"
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION agentops_refuse_change();"
        f"INSERT INTO kernel_append_only (name) VALUES ('{table}');"
        # A statement trigger is not inherited: each partition has its own.
        "DO $$ DECLARE part regclass; BEGIN"
        f" FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = '{table}'::regclass LOOP"
        "  EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %s FOR EACH STATEMENT"
        " EXECUTE FUNCTION agentops_refuse_change()', part::text || '_no_truncate', part);"
        " END LOOP; END $$;",
        f"DROP TRIGGER {table}_append_only ON {table}; DROP TRIGGER {table}_no_truncate ON {table};"
        f"DELETE FROM kernel_append_only WHERE name = '{table}';",
    )


def final_status(table: str, *statuses: str) -> RunSQL:
    """A row of `table` that has one of `statuses` keeps it for ever."""
    listed = ", ".join(f"'{status}'" for status in statuses)
    return RunSQL(
        f"CREATE TRIGGER {table}_final_status BEFORE UPDATE OF status ON {table} FOR EACH ROW"
        f" WHEN (OLD.status IN ({listed}) AND NEW.status <> OLD.status)"
        " EXECUTE FUNCTION agentops_refuse_change();",
        f"DROP TRIGGER {table}_final_status ON {table}",
    )


def unchanging(table: str, once: str) -> RunSQL:
    """A row of `table` whose column `once` is set is neither changed nor removed any more."""
    return RunSQL(
        f"CREATE TRIGGER {table}_unchanging BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW"
        f" WHEN (OLD.{once} IS NOT NULL) EXECUTE FUNCTION agentops_refuse_change();"
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION agentops_refuse_change();",
        f"DROP TRIGGER {table}_unchanging ON {table}; DROP TRIGGER {table}_no_truncate ON {table};",
    )
