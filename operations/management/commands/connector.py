"""`connector check`: run the contract test over connections in test mode, and grade them by what was seen."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.audit.entries import Actor
from operations.connectors.registry import CONNECTORS
from operations.contract import CannotTry, Proof, give_grade, prove
from operations.models import Connection
from operations.sentences import ability_name, grade_sentence, proof_sentence
from operations.states import Outcome


class Command(BaseCommand):
    help = "Prove on its provider what a connector declares, and store the grade. It really does something: test mode only."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        check = verbs.add_parser("check", help="run the contract test")
        check.add_argument("name", choices=sorted(CONNECTORS), help="the connector")
        check.add_argument("--tenant", default="", help="a tenant's slug; without it every tenant's")
        check.add_argument(
            "--connection", default="", help="the connection's name; without it every one in test mode"
        )
        check.add_argument(
            "--target", default="", help="what may be used up, where a connector wants it named"
        )
        check.add_argument(
            "--wait", type=float, default=0.0, help="seconds before the key is tried once more"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        rows = (
            Connection.objects.filter(connector=options["name"])
            .select_related("tenant")
            .order_by("tenant_id", "id")
        )
        if options["tenant"]:
            rows = rows.filter(tenant__slug=options["tenant"])
        rows = rows.filter(name=options["connection"]) if options["connection"] else rows.filter(mode="test")
        if not rows:
            raise CommandError(f"There is no such connection of {options['name']} in test mode.")
        failures = [self._check(row, options) for row in rows]
        if broken := [name for names in failures for name in names]:
            raise CommandError("The provider contradicts what is declared: " + "; ".join(broken) + ".")

    def _check(self, connection: Connection, options: dict[str, Any]) -> list[str]:
        """Test one connection; the abilities that its provider contradicts."""
        self.stdout.write(
            f"{connection.tenant.slug}/{connection}: version {CONNECTORS[connection.connector].version}"
        )
        proofs: list[Proof] = []
        try:
            for proof in prove(connection, target=options["target"], wait_seconds=options["wait"]):
                proofs.append(proof)
                self.stdout.write(f"  {ability_name(proof.ability):<24} {proof_sentence(proof.stored)}")
                self.stdout.flush()
        except CannotTry as why:
            raise CommandError(str(why)) from None
        grade = give_grade(connection, proofs, Actor("operator", "cli"))
        self.stdout.write(f"  grade: {grade_sentence(grade)}")
        contradicted = [proof for proof in proofs if proof.outcome == Outcome.CONTRADICTED]
        return [
            f"{connection.tenant.slug}/{connection.name}: {ability_name(each.ability)}"
            for each in contradicted
        ]
