"""Starts the demo's provider and shop: three ports on this machine, one file of books.

python -m agentops.demo.provider --port 9000 --payments-port 9001 --shop-port 9002 --books books.db --jwks keys.json
"""

import argparse
import signal
import sqlite3
import sys
import threading
from functools import partial
from pathlib import Path

from agentops.demo.provider.background import Background
from agentops.demo.provider.books import Books
from agentops.demo.provider.catalogue import open_shop
from agentops.demo.provider.control import Control
from agentops.demo.provider.faults import Door, Faults
from agentops.demo.provider.identity import Keys
from agentops.demo.provider.payments import Payments
from agentops.demo.provider.server import Listener, PortTaken, Reply, Request
from agentops.demo.provider.settlements import settle_due
from agentops.demo.provider.shop import Shop
from agentops.demo.provider.webhooks import Endpoint, deliver_due
from agentops.demo.provider.writes import forget_old_keys

DEMO_STRIPE_KEY = "sk_test_agentops_demo"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agentops.demo.provider", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--port", type=int, required=True, help="control door and payments API; 0 takes a free one"
    )
    parser.add_argument(
        "--payments-port", type=int, required=True, help="payments API alone; closed in `unreachable`"
    )
    parser.add_argument("--shop-port", type=int, required=True)
    parser.add_argument("--books", type=Path, required=True, help="SQLite file, made at the first start")
    parser.add_argument("--jwks", required=True, help="file or address of the keys that sign identity tokens")
    parser.add_argument("--webhook-url")
    parser.add_argument("--webhook-secret")
    parser.add_argument("--stripe-key", default=DEMO_STRIPE_KEY, help=f"default: {DEMO_STRIPE_KEY}")
    parser.add_argument(
        "--shop-key", help="if given, the shop wants it as Authorization: Bearer, beside the token"
    )
    options = parser.parse_args()
    if bool(options.webhook_url) != bool(options.webhook_secret):
        parser.error("--webhook-url and --webhook-secret go together")
    return options


def main() -> int:
    options = arguments()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        ledger = Books(options.books)
    except sqlite3.Error as fault:
        return complain(f"the books {options.books} cannot be opened: {fault}")
    with ledger.writing() as db:
        open_shop(db)
    forget_old_keys(ledger)
    try:
        print("provider ready: " + open_doors(options, ledger), flush=True)
    except PortTaken as fault:
        return complain(f"{fault}; choose another one or stop who holds it")
    stopping.wait()
    ledger.close()  # whoever is in a commit ends it; nobody starts another one
    return 0


def open_doors(options: argparse.Namespace, ledger: Books) -> str:
    """Everything is answered when this returns; says where."""
    endpoint = Endpoint(options.webhook_url, options.webhook_secret) if options.webhook_url else None
    announcer = Background("webhooks", partial(deliver_due, ledger, endpoint))
    settler = Background("settlements", partial(settle_due, ledger, announcer.nudge))

    def changed() -> None:
        settler.nudge()
        announcer.nudge()

    faults = Faults()
    control = Control(ledger, faults)
    payments = Payments(ledger, faults, options.stripe_key, changed)
    shop = Shop(ledger, faults, Keys(options.jwks), options.shop_key)

    def front(request: Request) -> Reply:
        return payments(request) if request.path.startswith("/v1/") else control(request)

    main_door = Listener(options.port, front)
    doors: dict[Door, Listener] = {
        "payments": Listener(options.payments_port, payments),
        "shop": Listener(options.shop_port, shop),
    }

    def follow_faults() -> None:
        for door, listener in doors.items():
            listener.follow(partial(faults.reachable, door))

    faults.on_change(follow_faults)
    follow_faults()
    main_door.follow(lambda: True)
    settler.start()
    announcer.start()
    return f"control {main_door.url} payments {doors['payments'].url} shop {doors['shop'].url}"


def complain(sentence: str) -> int:
    print(f"provider: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
