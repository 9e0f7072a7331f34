"""`manage.py policy <verb>`: write the rules of a tenant, try them on the past, and let them decide."""

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentops.cli import people, words
from agentops.tenancy.models import Tenant
from approvals.models import Policy
from approvals.policy import in_force
from approvals.rules import shape, versions
from approvals.rules.trial import LIMIT, Said, Trial, over_the_past
from operations.connectors.registry import ACTIONS
from operations.sentences import money

SHORT = 12  # of a digest, as it is shown and typed


class Command(BaseCommand):
    help = "Show a tenant's rules; check, draft, try, publish or discard a version of them (docs/policy.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        shown = verbs.add_parser("show", help="what decides now, and what waits to")
        shown.add_argument("action", nargs="?", default="", help="with its rules: refund.create")
        lint = verbs.add_parser("lint", help="every fault of a file of rules, with its place")
        draft = verbs.add_parser(
            "draft", help="make a file of rules the action's draft; the one before is gone"
        )
        tried = verbs.add_parser("trial", help="which past decisions the draft would have made otherwise")
        publish = verbs.add_parser("publish", help="let the draft decide from now on; it never changes again")
        discard = verbs.add_parser("discard", help="drop the draft")
        for each in (lint, draft, tried, publish, discard):
            each.add_argument("action", choices=sorted(ACTIONS))
        for each in (lint, draft):
            each.add_argument("file", help="a list of rules in JSON")
        tried.add_argument(
            "--limit", type=_count, default=LIMIT, help="how many past proposals, newest first"
        )
        publish.add_argument("digest", help="which draft you mean: the mark that `draft` and `trial` print")
        publish.add_argument("--log-only", action="store_true", help="decide nothing, record what it would")
        for each in (shown, lint, draft, tried, publish, discard):
            each.add_argument("--tenant", default="", help="needed by who is in several")
            each.add_argument("--as", dest="who", required=True, metavar="NAME", help="who does this")

    def handle(self, *args: Any, verb: str, who: str, tenant: str, action: str, **given: Any) -> None:
        person = people.person(who)
        where = people.tenant_of(person, tenant)
        people.require(person, "view_approvals" if verb == "show" else "manage_policies", where)
        by: dict[str, Any] = {"person": person, "channel": people.CHANNEL}
        with people.one_sentence():
            match verb:
                case "show":
                    self._say(_shown(where, action) if action else _all(where))
                case "lint":
                    self._lint(action, _read(given["file"]))
                case "draft":
                    rules = _read(given["file"])
                    self._lint(action, rules)
                    made = versions.save_draft(where, action, rules, **by)
                    self.stdout.write(f"Drafted: {_named(made)}. Next: manage.py policy trial {action}")
                case "trial":
                    self._say(_tried(over_the_past(_draft(where, action), limit=given["limit"])))
                case "publish":
                    draft = _draft(where, action)
                    mark = given["digest"]
                    digest = (
                        draft.digest if len(mark) >= SHORT and mark == _mark(draft)[: len(mark)] else mark
                    )
                    made = versions.publish(where, action, digest=digest, log_only=given["log_only"], **by)
                    does = "records what it would decide" if made.log_only else "decides"
                    self.stdout.write(f"Published: {_named(made)} {does} from now on.")
                case "discard":
                    versions.discard(where, action, **by)
                    self.stdout.write(f"The draft for {action} is gone.")

    def _say(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.stdout.write(line)

    def _lint(self, action: str, rules: Any) -> None:
        faults = shape.lint(ACTIONS[action], rules)
        if faults:
            raise CommandError("\n".join(str(fault) for fault in faults), returncode=people.REFUSED)
        self.stdout.write(f"{len(rules)} rules for {action}: no fault.")


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise ArgumentTypeError(f"{text[:20]!r} is no number of proposals, like {LIMIT}")
    return int(text)


def _read(file: str) -> Any:
    try:
        return shape.read(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}", returncode=people.REFUSED) from None


def _draft(where: Tenant, action: str) -> Policy:
    found = versions.draft_of(where, action)
    if found is None:
        raise CommandError(
            f"{where} has no draft for {action}: `policy draft {action} FILE`.", returncode=people.NOT_THERE
        )
    return found


def _mark(policy: Policy) -> str:
    return policy.digest.rpartition(":")[2]


def _named(policy: Policy) -> str:
    count = len(policy.rules)
    return f"{policy}, {count} rule{'s'[: count != 1]}, {_mark(policy)[:SHORT]}"


def _all(where: Tenant) -> Iterator[str]:
    for action in sorted(ACTIONS):
        force, silent = in_force(where.id, action)
        draft = versions.draft_of(where, action)
        more = [f"log-only: v{silent.number}"] if silent else []
        more += [f"draft: v{draft.number}"] if draft else []
        standing = _named(force) if force else "no rules: a person decides"
        yield f"{action:<20}  {'; '.join([standing, *more])}"


def _shown(where: Tenant, action: str) -> Iterator[str]:
    if action not in ACTIONS:
        raise CommandError(
            f"There is no action {action}; there are: {', '.join(sorted(ACTIONS))}.",
            returncode=people.NOT_THERE,
        )
    force, silent = in_force(where.id, action)
    found = {"decides": force, "only records": silent, "draft": versions.draft_of(where, action)}
    if not any(found.values()):
        yield f"{where} has no rules for {action}: a person decides."
    for what, policy in found.items():
        if policy is None:
            continue
        when = f" since {policy.published_at:%Y-%m-%d %H:%M} UTC" if policy.published_at else ""
        by = words.named(policy.published_by or policy.created_by)
        yield f"{_named(policy)}: {what}{when}{f', by {by}' if by else ''}"
        yield json.dumps(policy.rules, indent=2, ensure_ascii=False)


def _tried(done: Trial) -> Iterator[str]:
    unreadable = f", {done.unreadable} cannot be read any more" if done.unreadable else ""
    same = done.looked_at - done.unreadable - len(done.differences)
    yield f"{_named(done.policy)}, over {done.looked_at} past proposals:"
    yield f"  {same} decided the same, {len(done.differences)} otherwise{unreadable}"
    for each in done.differences:
        currency = each.operation.currency
        yield f"  {each.operation}  {each.operation.target_text}: {_in_words(each.was, currency)} → {_in_words(each.would, currency)}"


def _in_words(said: Said, currency: str) -> str:
    amount = f" {money(said.amount_minor, currency)}" if currency else ""
    people_asked = f" by {said.required}" if said.required > 1 else ""
    group = f" of {said.group}" if said.group else ""
    return f"{said.outcome}{amount}{people_asked}{group} ({said.rule})"
