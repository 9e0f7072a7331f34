"""`manage.py connection restore NAME`: put a new credential in; what waits behind that connection goes on."""

import getpass
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentops.cli import people
from agentops.tenancy.models import Tenant
from operations.connections import set_credential
from operations.models import Connection

VARIABLE = "AGENTOPS_CREDENTIAL"
RIGHT = "control_runs"


class Command(BaseCommand):
    help = (
        "Restore the credential of a connection. It is read from the standard input, or from the environment variable "
        f"{VARIABLE}; never from the command line, which others on this machine can see."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        restore = verbs.add_parser("restore", help="put a new credential in, and say which operations go on")
        restore.add_argument("name", help="the connection's name: stripe")
        restore.add_argument("--tenant", default="", help="needed by who is in several")
        restore.add_argument("--as", dest="who", required=True, metavar="NAME", help="who does this")

    def handle(self, *args: Any, name: str, tenant: str, who: str, **_: Any) -> None:
        person = people.person(who)
        where = people.tenant_of(person, tenant)
        people.require(person, RIGHT, where)
        connection = _named(where, name)
        secret = os.environ.get(VARIABLE) or _typed(connection)
        if not secret.strip():
            raise CommandError("There was no credential to read; nothing was changed.")
        going_on = set_credential(connection, secret.strip(), people.actor(person))
        self.stdout.write(f"{connection} of {where} has its new credential.")
        for each in going_on:
            self.stdout.write(
                f"  {each}  {each.status:<10}  {each.action} on {each.target_text}  goes on now"
            )
        if not going_on:
            self.stdout.write("  No operation was waiting for it.")


def _named(tenant: Tenant, name: str) -> Connection:
    mine = Connection.objects.filter(tenant=tenant)
    found = mine.select_related("tenant").filter(name=name).first()
    if found is None:
        known = ", ".join(mine.order_by("name").values_list("name", flat=True)) or "none"
        raise CommandError(
            f"{tenant} has no connection {name!r}; it has: {known}.", returncode=people.NOT_THERE
        )
    return found


def _typed(connection: Connection) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"New credential of {connection} (it is not shown): ")
    return sys.stdin.read()  # whole: a key may have several lines
