"""`manage.py agent <verb>`: let an agent start no new run of a tenant, let it start runs again, and see which may not."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentops.cli import people, words
from agentops.sdk import agents as known_agents
from runs.holds import pause_agent, resume_agent
from runs.models import AgentPause
from runs.states import TERMINAL


class Command(BaseCommand):
    help = "List agents; pause one (no new run of a tenant; its runs end) or resume it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        listed = verbs.add_parser("list", help="every agent, and whether it is paused")
        decides = [
            verbs.add_parser(verb, help=f"{verb} an agent in one tenant") for verb in ("pause", "resume")
        ]
        for each in decides:
            each.add_argument("agent")
            each.add_argument(
                "--reason", required=True, help="it stands in the record, and in what callers are told"
            )
        for each in (listed, *decides):
            each.add_argument("--tenant", default="", help="needed by who is in several")
            each.add_argument("--as", dest="who", required=True, metavar="NAME", help="who does this")

    def handle(self, *args: Any, verb: str, who: str, tenant: str, **given: Any) -> None:
        person = people.person(who)
        where = people.tenant_of(person, tenant)
        people.require(person, "view_runs" if verb == "list" else "control_runs", where)
        if verb == "list":
            pauses = {pause.agent: pause for pause in AgentPause.objects.filter(tenant=where)}
            for name in sorted({agent.name for agent in known_agents.agents()} | pauses.keys()):
                self.stdout.write(f"{name:<24}  {_state(pauses.get(name))}".rstrip())
            return
        name, how = given["agent"], {"actor": people.actor(person), "reason": given["reason"]}
        if verb == "pause" and known_agents.offered(name) is None:
            names = ", ".join(each.name for each in known_agents.agents())
            raise CommandError(
                f"There is no agent {name!r}; name one of: {names}.", returncode=people.NOT_THERE
            )
        with people.one_sentence():
            if verb == "resume":
                resume_agent(where, name, **how)
                self.stdout.write(f"{name} starts runs of {where} again.")
                return
            pause_agent(where, name, **how)
        alive = where.runs.filter(agent=name).exclude(status__in=TERMINAL).count()
        self.stdout.write(f"{name} starts no new run of {where}; {alive} present ones go on to their end.")


def _state(pause: AgentPause | None) -> str:
    if pause is None:
        return "starts runs"
    return words.named(f"paused by {pause.paused_by} at {pause.paused_at:%Y-%m-%d %H:%M} UTC: {pause.reason}")
