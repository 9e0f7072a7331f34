"""Approvals at the terminal: what waits, one of them in full, and a person's answer to it, with that person's rights."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.cli import words
from agentops.cli.people import CHANNEL, NO_RIGHT, NOT_THERE, REFUSED, person
from agentops.kernel.ids import parse
from agentops.kernel.problems import NotFound, NotYours, Problem
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy.models import User
from approvals import queries, sentences
from approvals.endings import ending_sentence, moved_sentence, taken_back_sentence
from approvals.models import Approval
from approvals.services import decide, extend, lower, revoke

LISTED = 200


class Command(BaseCommand):
    help = "List what waits for a decision, show one proposal, and decide, lower, extend or take back one."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        every: dict[str, CommandParser] = {
            "list": verbs.add_parser("list", help="what waits, oldest first"),
            "show": verbs.add_parser("show", help="what is proposed, what it rests on, who has said what"),
            "approve": verbs.add_parser("approve", help="say yes to exactly the proposal of that digest"),
            "reject": verbs.add_parser("reject", help="say no; the agent receives the reason"),
            "lower": verbs.add_parser("lower", help="ask about less instead"),
            "extend": verbs.add_parser("extend", help="give it as much time again, once"),
            "revoke": verbs.add_parser("revoke", help="take a yes back while nothing is on its way"),
        }
        for name, verb in every.items():
            verb.add_argument("--as", dest="person", required=True, metavar="NAME", help="who it is")
            if name != "list":
                verb.add_argument("id", help="apr_…")
            if name in ("approve", "reject", "lower"):
                verb.add_argument("--digest", required=True, help="of the proposal as shown")
            if name in ("reject", "lower", "revoke"):
                verb.add_argument("--reason", required=True, help="why; it is kept")
        every["approve"].add_argument("--reason", default="", help="a comment for the record")
        every["lower"].add_argument("changes", nargs="+", metavar="NAME=VALUE", help="amount_minor=5000")

    def handle(self, *args: Any, **options: Any) -> None:
        who = person(options["person"])
        if options["verb"] == "list":
            self._list(who)
            return
        approval = _named(who, options["id"])
        try:
            self._do(options["verb"], who, approval, options)
        except NotYours as refused:
            raise CommandError(refused.detail, returncode=NO_RIGHT) from None
        except NotFound as missing:
            raise CommandError(missing.detail, returncode=NOT_THERE) from None
        except CannotUnseal:
            raise CommandError(sentences.code_sentence("unreadable"), returncode=REFUSED) from None
        except Problem as problem:
            raise CommandError(f"{problem.detail} ({problem.code})", returncode=REFUSED) from None

    def _list(self, who: User) -> None:
        open_ones = queries.visible(who).filter(queries.IS_OPEN)
        for approval in open_ones[:LISTED]:
            until = f"{approval.expires_at:%Y-%m-%d %H:%M} UTC" if approval.expires_at else "no end"
            title = words.one_line(sentences.title(approval))
            self.stdout.write(f"{approval}  {approval.risk:<8}  until {until}  {title}")

    def _do(self, verb: str, who: User, approval: Approval, options: dict[str, Any]) -> None:
        by: dict[str, Any] = {"reviewer": who, "channel": CHANNEL}
        tenant_id, approval_id = approval.tenant_id, approval.id
        match verb:
            case "show":
                self._show(approval)
            case "approve" | "reject":
                given = {"reason": options["reason"], "proposal_digest": options["digest"]}
                decided = decide(tenant_id, approval_id, verdict=verb, **given, **by)
                self.stdout.write(f"{decided} is {decided.status}.")
            case "lower":
                given = {"reason": options["reason"], "proposal_digest": options["digest"]}
                asked = lower(tenant_id, approval_id, changes=_changes(options["changes"]), **given, **by)
                self.stdout.write(
                    f"{asked} asks for less: {asked.proposal_digest}" if asked else "A rule denies that."
                )
            case "extend":
                longer = extend(tenant_id, approval_id, **by)
                self.stdout.write(f"{longer} may be decided until {longer.expires_at:%Y-%m-%d %H:%M} UTC.")
            case "revoke":
                taken = revoke(tenant_id, approval_id, reason=options["reason"], **by)
                self.stdout.write(f"{taken}: {taken_back_sentence(taken.operation.status)}")

    def _show(self, approval: Approval) -> None:
        sheet, grounds, currency = queries.proposal(approval), queries.grounds(approval), approval.currency
        lines = [sentences.title(approval), ending_sentence(approval)]
        if "moved" in sheet:
            lines.append(f"Asked again. {moved_sentence(sheet['moved'], currency=currency)}")
        lines += [f"  {name}: {value}" for name, value in sheet["params"].items()]
        lines += [sentences.reason_sentence(reason) for reason in sheet["reasons"]]
        lines += [sentences.warning_sentence(warning) for warning in sheet["warnings"]]
        lines += [sentences.fact_sentence(fact, currency=currency) for fact in grounds["facts"]]
        for decision in approval.decisions.select_related("reviewer").order_by("id"):
            lines.append(f"{decision.reviewer.username} said {decision.verdict}: {queries.reason(decision)}")
        lines.append(f"digest {approval.proposal_digest}")
        self.stdout.write("\n".join(words.one_line(line) for line in lines))


def _named(who: User, public_id: str) -> Approval:
    key = parse("apr", public_id)
    found = queries.visible(who).filter(pk=key).first() if key else None
    if found is None:
        raise CommandError(f"There is no approval {public_id}.", returncode=NOT_THERE)
    return found


def _changes(given: list[str]) -> dict[str, int]:
    pairs = [word.partition("=") for word in given]
    if any(not value.isdecimal() or len(value) > 18 for _, _, value in pairs):
        raise CommandError("Say NAME=VALUE, with a whole number: amount_minor=5000.", returncode=REFUSED)
    return {name: int(value) for name, _, value in pairs}
