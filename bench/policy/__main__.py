"""Measures what a look at a tenant's rules costs once its rows are read: no database, one core.

    python -m bench.policy [--seconds 2] [--rounds 5]

A rate depends on the machine; only the ratios count, measured in turns in the same run.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
os.environ.setdefault("AGENTOPS_DEMO", "1")

import cel
import django

django.setup()

from agentops.demo.seed import RULES  # noqa: E402
from approvals.rules.evaluation import first_match, ruleset  # noqa: E402
from approvals.rules.grammar import MAX_CHARS  # noqa: E402
from approvals.rules.shape import lint  # noqa: E402
from operations.connectors.registry import ACTIONS  # noqa: E402

REFUND = ACTIONS["refund.create"]
DEMO = RULES["refund.create"]
VALUES: dict[str, object] = {
    "operation.action": "refund.create",
    "operation.version": 1,
    "operation.target": "order:A-1001",
    "operation.target_type": "order",
    "operation.reference": "A-1001-1",
    "operation.amount_minor": 12_900,
    "operation.currency": "EUR",
    "operation.connection": "payments",
    "operation.mode": "test",
    "actor.kind": "customer",
    "actor.id": "C-1001",
    "tenant.slug": "acme",
    "run.agent": "support-agent",
    "run.channel": "rest",
    "run.is_child": False,
    "target.order_status": "delivered",
    "target.refundable_minor": 48_900,
    "history.same_target": 0,
    "history.customer.last_30d.count": 2,
    "history.customer.today.sum_minor": 5_000,
}
EUR = 'operation.currency == "EUR" && '
FIFTY = [
    {
        "code": f"rule.n{n}",
        "when": f'{EUR}(operation.amount_minor > {10_000_000 + n} || history.customer.last_30d.count > {10 + n}) && actor.kind == "customer"',
        "outcome": "deny",
    }
    for n in range(50)
]
LONGEST = " || ".join(f'actor.id == "{n:05}"' for n in range(43))


def nested() -> dict[str, object]:
    """The same values as CEL's own users would hand them over: maps in maps."""
    tree: dict[str, object] = {}
    for path, value in VALUES.items():
        *way, name = path.split(".")
        place = tree
        for part in way:
            place = place.setdefault(part, {})  # type: ignore[assignment]
        place[name] = value
    return tree


def subjects() -> dict[str, Callable[[], object]]:
    demo, fifty = ruleset(REFUND, DEMO), ruleset(REFUND, FIFTY)
    longest = ruleset(REFUND, [{"code": "a", "when": LONGEST, "outcome": "allow"}])
    plain, tree = [cel.compile(rule["when"]) for rule in DEMO], nested()
    return {
        "the demo's four rules, the last one decides": lambda: first_match(demo, VALUES),
        "fifty rules with history, none decides": lambda: first_match(fifty, VALUES),
        f"one condition of {len(LONGEST)} characters (of {MAX_CHARS})": lambda: first_match(longest, VALUES),
        "the four in plain CEL, compiled, values as maps": lambda: [each.execute(tree) for each in plain],
        "the four made ready anew each time": lambda: first_match(ruleset(REFUND, DEMO), VALUES),
        "lint of the four": lambda: lint(REFUND, DEMO),
    }


def rate(work: Callable[[], object], seconds: float) -> float:
    done, began = 0, time.process_time()
    while (taken := time.process_time() - began) < seconds:
        for _ in range(20):
            work()
        done += 20
    return done / taken


def main() -> None:
    options = argparse.ArgumentParser(prog="bench.policy", description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="of CPU for each subject and round")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    found: dict[str, list[float]] = {name: [] for name in subjects()}
    for _ in range(given.rounds):
        for name, work in subjects().items():
            found[name].append(rate(work, given.seconds / given.rounds))
    first = statistics.median(next(iter(found.values())))
    print("| a second of one core | | to the first |\n|---|---|---|")
    for name, rates in found.items():
        middle = statistics.median(rates)
        print(f"| {name} | {middle:,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) | {middle / first:.2f} |")


if __name__ == "__main__":
    main()
