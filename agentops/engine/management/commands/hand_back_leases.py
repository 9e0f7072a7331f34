"""Hand back the leases of a worker process that has been reaped, so that nobody waits for them to run out."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from runs import leases


class Command(BaseCommand):
    help = "Hand back the leases of the dead worker process with this token."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("token", help="the AGENTOPS_WORKER_TOKEN that the process was started with")

    def handle(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(leases.HAND_BACK_DEAD, {"owner": options["token"]})
            left = cursor.fetchall()
            for tenant_id, key in left:
                if key:
                    cursor.execute(leases.LEAVE_KEY, {"tenant_id": tenant_id, "key": key})
            # Its requests on the wire are another matter: they become unknown, and are looked up.
            cursor.execute(
                "UPDATE operations_operation SET lease_owner = NULL, lease_expires_at = NULL,"
                " next_attempt_at = agentops_now()"
                " WHERE lease_owner = %s AND status = 'executing' RETURNING id",
                [options["token"]],
            )
            operations = len(cursor.fetchall())
        self.stdout.write(f"handed back {len(left)} runs; {operations} operations are looked up")
