"""`manage.py run <verb>`: start a run and follow it, look at runs, cancel, pause, resume, retry, move, rerun and replay them."""

import secrets
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from agentops.cli import people, words
from agentops.engine.control import CancelReceipt, cancel_run
from agentops.engine.outlook import outlook
from agentops.engine.pause import PauseReceipt, pause_run, resume_run
from agentops.engine.releases import move_run
from agentops.engine.replay import Match, replay
from agentops.engine.rerun import rerun
from agentops.engine.retry import RetryReceipt, retry_run
from agentops.sdk import agents as known_agents
from approvals.policy import published
from runs import queries
from runs.models import AgentRun
from runs.services import Start, start_run
from runs.states import TERMINAL, RunStatus

LOOK_SECONDS = 0.3
PAGE = 200
DECIDING = {
    "cancel": "cancel_runs",
    "pause": "control_runs",
    "resume": "control_runs",
    "retry": "control_runs",
    "move": "control_runs",
}


class Command(BaseCommand):
    help = "Start a run and follow it; list, show, follow, cancel, pause, resume, retry, move, rerun or replay runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        start = verbs.add_parser("start", help="start a run and follow it to its end")
        start.add_argument("agent")
        start.add_argument("input", help="what is asked, in one argument")
        start.add_argument("--tenant", default="", help="needed by who is in several")
        start.add_argument("--actor", default="", help="whom it acts for: customer:C-1001")
        start.add_argument("--budget-cents", type=int)
        start.add_argument("--detach", action="store_true", help="print the run's id and return at once")
        listed = verbs.add_parser("list", help="the newest runs")
        listed.add_argument("--status", choices=["active", "paused", *RunStatus.values])
        listed.add_argument(
            "--code", help="the reason of the end: step_limit, budget, deadline, repeated_call, …"
        )
        listed.add_argument("--agent")
        listed.add_argument("--stuck", action="store_true", help="those that a person should look at")
        listed.add_argument("--limit", type=int, default=20)
        followed = verbs.add_parser("follow", help="its progress until it ends")
        shown = verbs.add_parser("show", help="how it stands, and what holds it up")
        replayed = verbs.add_parser("replay", help="walk it again in the present code against its record")
        for verb, of in {"show": shown, "follow": followed, "replay": replayed}.items():
            of.add_argument("run", help=f"the run to {verb}: run_…")
        for verb in DECIDING:
            decides = verbs.add_parser(verb, help=f"{verb} a run")
            decides.add_argument("run")
            decides.add_argument("--reason", required=True, help="it stands in the record")
        rerun = verbs.add_parser(
            "rerun", help="what a rerun of an ended run would meet; with --yes or --digest, begin it"
        )
        rerun.add_argument("run")
        rerun.add_argument("--input", help="ask this instead: a fork")
        rerun.add_argument("--reason", default="", help="it stands in the record; needed to begin")
        confirmed = rerun.add_mutually_exclusive_group()
        confirmed.add_argument("--digest", help="of the list that was shown: begin if it has not moved since")
        confirmed.add_argument("--yes", action="store_true", help="begin whatever the list says now")
        for each in (
            start,
            listed,
            shown,
            followed,
            replayed,
            rerun,
            *(verbs.choices[verb] for verb in DECIDING),
        ):
            each.add_argument("--as", dest="who", required=True, metavar="NAME", help="who does this")

    def handle(self, *args: Any, verb: str, **given: Any) -> None:
        self.who = people.person(given.pop("who"))
        with people.one_sentence():
            match verb:
                case "start":
                    self._start(**given)
                case "list":
                    self._list(**given)
                case "show":
                    self._say(words.shown(people.run_of(self.who, given["run"], "view_runs")))
                case "follow":
                    self._follow(people.run_of(self.who, given["run"], "view_runs"))
                case "replay":
                    self._replay(people.run_of(self.who, given["run"], "view_runs"))
                case "rerun":
                    self._rerun(people.run_of(self.who, given["run"], "control_runs"), **given)
                case _:
                    self._decide(verb, people.run_of(self.who, given["run"], DECIDING[verb]), given["reason"])

    def _say(self, lines: Any) -> None:
        for line in lines:
            self.stdout.write(line)

    def _start(
        self,
        agent: str,
        input: str,
        tenant: str,
        actor: str,
        budget_cents: int | None,
        detach: bool,
        **_: Any,
    ) -> None:
        where = people.tenant_of(self.who, tenant)
        people.require(self.who, "control_runs", where)
        known = known_agents.offered(agent)
        if known is None:
            names = ", ".join(each.name for each in known_agents.agents())
            raise CommandError(
                f"There is no agent {agent!r}; name one of: {names}.", returncode=people.NOT_THERE
            )
        if budget_cents is not None and budget_cents < 1:
            raise CommandError("A budget is one cent at least: without one the run has its agent's own.")
        asked = Start(input=input, actor=actor, budget_cents=budget_cents)
        rules = published(where.id, known)
        with transaction.atomic():
            run, _new = start_run(
                people.principal(self.who, where),
                known,
                asked,
                trace_id=secrets.token_hex(16),
                policies=rules,
            )
        self.stdout.write(run.public_id)
        if not detach:
            self._follow(run)

    def _list(
        self, status: str | None, code: str | None, agent: str | None, stuck: bool, limit: int, **_: Any
    ) -> None:
        runs = queries.visible(self.who)
        if stuck:
            keys = [*queries.answered_and_unclaimed(), *queries.cancelled_and_alive()]
            runs = runs.filter(pk__in=[run.pk for run in keys])
        match status:
            case "active":
                runs = runs.exclude(status__in=TERMINAL)
            case "paused":
                runs = runs.exclude(status__in=TERMINAL).filter(paused_at__isnull=False)
            case str():
                runs = runs.filter(status=status)
        if code:
            runs = runs.filter(error_code=code)
        if agent:
            runs = runs.filter(agent=agent)
        found = list(runs[: max(1, limit)])
        self._say(words.line(run) for run in found)
        if not found:
            self.stderr.write("No run matches.")

    def _follow(self, run: AgentRun) -> None:
        """Print its log as it grows; ends with its answer, or with exit code 1 where it has none."""
        seen = 0
        try:
            while True:
                ended = AgentRun.objects.filter(pk=run.pk, status__in=TERMINAL).exists()
                while page := queries.events_after(run.id, seen, PAGE):
                    seen = page[-1].seq
                    self._say(line for line in map(words.progress, page) if line)
                if ended:
                    break
                threading.Event().wait(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.stderr.write(f"The run goes on. `run follow {run.public_id}` shows it again.")
            return
        run = AgentRun.objects.get(pk=run.pk)
        if run.status != RunStatus.COMPLETED:
            why = run.error_detail or run.ending_reason
            raise CommandError(
                f"{run} is {run.status}: {run.error_code}. {why}".rstrip(), returncode=people.REFUSED
            )
        self.stdout.write(f"\n{words.answer(run)}")

    def _replay(self, run: AgentRun) -> None:
        """Exit code 1 where the present code does not walk as the run did."""
        lines = replay(run)
        self._say(f"{each.match:<8}  {each.place:<32}  {each.name}  {each.detail}".rstrip() for each in lines)
        off = sum(each.match != Match.MATCHED for each in lines)
        if off:
            raise CommandError(
                f"{off} of {len(lines)} are not as on record. Nothing was sent, asked or written.",
                returncode=people.REFUSED,
            )
        self.stdout.write(f"All {len(lines)} are as on record. Nothing was sent, asked or written.")

    def _rerun(
        self, source: AgentRun, input: str | None, reason: str, digest: str | None, yes: bool, **_: Any
    ) -> None:
        seen = outlook(source)
        self._say(words.met(seen))
        if not yes and digest is None:
            self.stdout.write(f"Begin it with: run rerun {source} --digest {seen.digest} --reason …")
            return
        if not reason:
            raise CommandError("Say why with --reason; it stands in the record.", returncode=people.REFUSED)
        how: Any = {"actor": people.actor(self.who), "reason": reason, "text": input}
        receipt = rerun(source.tenant_id, source.id, digest=digest or seen.digest, **how)
        self.stdout.write(f"{source} is run again as {receipt.run}.")

    def _decide(self, verb: str, run: AgentRun, reason: str) -> None:
        how: Any = {"actor": people.actor(self.who), "reason": reason}
        match verb:
            case "cancel":
                self._say(_cancelled(cancel_run(run.tenant_id, run.id, **how)))
            case "pause":
                self._say(_paused(pause_run(run.tenant_id, run.id, **how)))
            case "resume":
                resume_run(run.tenant_id, run.id, **how)
                self.stdout.write(f"{run} goes on.")
            case "retry":
                self._say(_retried(retry_run(run.tenant_id, run.id, **how)))
            case "move":
                move_run(run.tenant_id, run.id, **how)
                self.stdout.write(f"{run} goes on under the present release.")


def _cancelled(receipt: CancelReceipt) -> list[str]:
    state = (
        "is being cancelled; it ends when what was sent is settled"
        if receipt.has_open_effects
        else "is cancelled"
    )
    outcomes = [
        f"  {each.operation_id}  {each.outcome.replace('_', ' ')}  {each.action} on {each.target}"
        for each in receipt.effects
    ]
    return [f"{receipt.run} {state}.", *outcomes]


def _paused(receipt: PauseReceipt) -> list[str]:
    said = [f"{receipt.run} is paused."]
    if receipt.step_under_way:
        said.append("  Its present step ends first.")
    said += [f"  {each}  is allowed and not sent meanwhile" for each in receipt.held]
    return said + [f"  {each}  was sent; its outcome is found out all the same" for each in receipt.followed]


def _retried(receipt: RetryReceipt) -> list[str]:
    head = f"{receipt.source} goes on as {receipt.run}" if receipt.is_new else f"{receipt.run} goes on"
    said = f"{head}: {receipt.steps} completed steps are read back, not done again."
    return [said, *(f"  {each}  is inherited" for each in receipt.operations)]
