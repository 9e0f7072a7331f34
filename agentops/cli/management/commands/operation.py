"""Operations at the terminal: what is known of one, a person's word on what became of it, the comparison with providers."""

from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.engine.reversal import reverse
from agentops.kernel.ids import parse
from agentops.kernel.problems import Problem
from agentops.tenancy.models import User
from approvals.services import AUTHORITY
from operations import queries
from operations.connectors.base import CheckFailed
from operations.dispatch import loaded
from operations.grades import declared
from operations.models import Connection, Operation, Sweep
from operations.sentences import action_title, finding_sentence, status_label, status_sentence
from operations.settlement import LOOK_HOURS, Says, Settled, settle
from operations.states import PersonsVerdict
from operations.sweep import carry_on

CHANNEL = "cli"
MAX_PAGES = 10_000  # of one connection's list


class Command(BaseCommand):
    help = (
        "Show an operation with its evidence, settle one whose outcome is unknown, have a done one undone, or compare all "
        "with their providers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        show = verbs.add_parser("show", help="what is known of it, oldest evidence first")
        show.add_argument("id", help="op_…")
        word = verbs.add_parser("settle", help="say what became of it")
        word.add_argument("id", help="op_…")
        word.add_argument("verdict", choices=PersonsVerdict.values)
        word.add_argument("--as", dest="person", required=True, metavar="NAME", help="who says so")
        word.add_argument("--reason", default="", help="why; with did-not: what proves it")
        word.add_argument("--reference", default="", help="with happened: the provider's reference")
        word.add_argument("--hours", type=int, default=LOOK_HOURS, help="with keep-looking: how long")
        undo = verbs.add_parser(
            "reverse", help="have it undone, by a new operation that is decided and sent like any other"
        )
        undo.add_argument("id", help="op_…")
        undo.add_argument("--as", dest="person", required=True, metavar="NAME", help="who asks for it")
        undo.add_argument("--reason", required=True, help="why; it is kept")
        sweep = verbs.add_parser("sweep", help="compare what providers list with our operations, now")
        sweep.add_argument("--tenant", default="", help="a tenant's slug; without it every tenant's")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "sweep":
            self._sweep(options["tenant"])
            return
        operation = _named(options["id"])
        if options["verb"] == "show":
            self._show(operation)
            return
        if options["verb"] == "reverse":
            self._reverse(operation, options["person"], options["reason"])
            return
        says = Says(
            PersonsVerdict(options["verdict"]), options["reason"], options["reference"], options["hours"]
        )
        try:
            done = settle(
                operation.tenant_id,
                operation.id,
                says,
                person=person_named(options["person"]),
                channel=CHANNEL,
            )
        except Problem as problem:
            raise CommandError(problem.detail) from None
        self.stdout.write(_told(done))

    def _reverse(self, operation: Operation, name: str, reason: str) -> None:
        try:
            run = reverse(
                operation.tenant_id,
                operation.id,
                person=person_named(name),
                reason=reason,
                channel=CHANNEL,
            )
        except Problem as problem:
            raise CommandError(problem.detail) from None
        self.stdout.write(f"{run} proposes it. Follow it with: manage.py run follow {run} --as {name}")

    def _sweep(self, tenant: str) -> None:
        rows = Connection.objects.filter(enabled=True).select_related("tenant").order_by("tenant_id", "id")
        for row in rows.filter(tenant__slug=tenant) if tenant else rows:
            if not declared(row).can_list:
                self.stdout.write(f"{row.tenant.slug}/{row.name}: its provider cannot list")
                continue
            try:
                done = carry_on(row, AUTHORITY, pages=MAX_PAGES, tell=partial(self._swept, row))
            except CheckFailed as failed:
                raise CommandError(f"{row.tenant.slug}/{row.name}: {failed.detail}") from None
            if done.finished_at is None:
                self.stdout.write(
                    f"{row.tenant.slug}/{row.name}: not through; somebody else is at it, or go on later"
                )

    def _swept(self, row: Connection, sweep: Sweep) -> None:
        where = "through" if sweep.finished_at else "so far"
        self.stdout.write(
            f"{row.tenant.slug}/{row.name}: {sweep.since:%Y-%m-%d %H:%M} to {sweep.until:%Y-%m-%d %H:%M}, {where}:"
            f" {sweep.listed} effects, {sweep.ours} ours, {sweep.foreign} others', {sweep.adopted} adopted"
        )
        self.stdout.flush()

    def _show(self, operation: Operation) -> None:
        write = self.stdout.write
        write(f"{action_title(operation)}  {operation}")
        write(f"  status     {status_label(operation.status)} ({operation.status})")
        write(f"  tenant     {operation.tenant.slug}, for {operation.actor}, in {operation.run}")
        write(f"  at         {operation.connection}")
        if operation.provider_ref:
            write(f"  reference  {operation.provider_ref}")
        for name, at in (("quiet at", operation.quiet_at), ("key until", operation.key_expires_at)):
            if at is not None:
                write(f"  {name:9}  {at:%Y-%m-%d %H:%M:%S} UTC")
        tries = queries.attempts(operation)
        for attempt in tries:
            write(f"  {attempt.started_at:%Y-%m-%d %H:%M:%S}  Attempt {attempt.number} was sent.")
        for finding in queries.findings(operation):
            write(
                f"  {finding['at']:%Y-%m-%d %H:%M:%S}  {finding_sentence(finding)} {finding['detail']}".rstrip()
            )
        write(status_sentence(operation, sent_at=tries[-1].started_at if tries else None))
        if operation.status in ("unknown", "escalated"):
            write(f"Next: manage.py operation settle {operation} {'|'.join(PersonsVerdict.values)} --as NAME")


def _named(text: str) -> Operation:
    known = parse("op", text)
    if known is None or not Operation.objects.filter(pk=known).exists():
        raise CommandError(f"There is no operation {text}; an operation is named like op_01k….")
    return loaded(known)


def person_named(name: str) -> User:
    person = User.objects.filter(username=name).first()
    if person is None:
        raise CommandError(f"There is nobody called {name}; --as takes the name that they sign in with.")
    return person


def _told(done: Settled) -> str:
    operation = done.operation
    where = status_label(operation.status).lower()
    match done.how:
        case "waits":
            return f"Noted. {operation} waits for a second person, who says the same by the same command."
        case "quicker":
            return f"Nothing more was to be done: {operation} has moved on meanwhile ({where})."
    return f"Settled: {operation} is {where} ({operation.status})."
