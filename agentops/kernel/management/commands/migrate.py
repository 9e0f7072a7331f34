"""`migrate` as the owner of the schema; afterwards the application's role gets its rights."""

from typing import Any

from django.core.management.commands.migrate import Command as Migrate
from django.db import connection

from agentops.kernel import roles


class Command(Migrate):
    def handle(self, *args: Any, **options: Any) -> None:
        roles.become_owner(connection)
        super().handle(*args, **options)
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regproc('agentops_open_partitions') IS NOT NULL")
            if cursor.fetchone()[0]:
                cursor.execute("SELECT agentops_open_partitions(2)")
                roles.grant()
        connection.close()
