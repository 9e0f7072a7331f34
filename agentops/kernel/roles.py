"""The two database roles: the owner migrates, the application inserts and reads where rows are append-only."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

WHOLE = "SELECT, INSERT, UPDATE, DELETE"


def become_owner(target: BaseDatabaseWrapper) -> None:
    """From the next connect on, `target` works as the role that signs in, not as the application's."""
    options: dict[str, Any] = target.settings_dict["OPTIONS"]
    options.pop("pool", None)
    kept = [part for part in options.get("options", "").split("-c ") if part and not part.startswith("role=")]
    options["options"] = "".join(f"-c {part}" for part in kept)
    target.close()


def grant() -> None:
    """Create the application's role where it is missing and give it its rights on every table."""
    role = settings.APP_ROLE
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
        try:
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE ROLE {role} NOLOGIN")
            cursor.execute("SELECT pg_has_role(current_user, %s, 'MEMBER')", [role])
            if not cursor.fetchone()[0]:
                cursor.execute(f"GRANT {role} TO current_user")
        except DatabaseError as error:
            raise CommandError(
                f"The role {role} is missing and this database user may not create it ({error}). As an administrator:"
                f' CREATE ROLE {role} NOLOGIN; GRANT {role} TO "{connection.settings_dict["USER"]}"; then migrate again.'
            ) from None
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
        cursor.execute(f"GRANT {WHOLE} ON ALL TABLES IN SCHEMA public TO {role}")
        cursor.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}")
        cursor.execute(f"REVOKE ALL ON kernel_partitioned, kernel_append_only, django_migrations FROM {role}")
        cursor.execute(f"GRANT SELECT ON django_migrations TO {role}")
        for table in append_only_tables():
            cursor.execute(f"REVOKE UPDATE, DELETE, TRUNCATE ON {table} FROM {role}")


def append_only_tables() -> list[str]:
    """Append-only tables with their partitions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_class c JOIN kernel_append_only k ON c.relname = k.name"
            " UNION SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " JOIN pg_class p ON p.oid = i.inhparent JOIN kernel_append_only k ON k.name = p.relname ORDER BY 1"
        )
        return [name for (name,) in cursor.fetchall()]
