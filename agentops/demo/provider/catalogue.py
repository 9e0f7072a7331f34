"""The orders there are: those of the demo, made at the first start, and more of them on request."""

from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection, Row
from typing import Any

from agentops.demo.provider import books
from agentops.demo.provider.books import insert
from agentops.demo.provider.payments import ChargeWish, add_charge

CURRENCY = "EUR"
DAY_SECONDS = 86_400
PREFIXES = {"acme": ("A", 1001), "globex": ("G", 2001)}  # any other tenant: its own name, from 1001
CARRIERS = ("DHL", "UPS", "GLS")

PREPARING, ON_ITS_WAY, DELIVERED = "preparing", "in_transit", "delivered"


@dataclass(frozen=True)
class Item:
    amount_minor: int
    title: str
    shipment: str = DELIVERED


ACME = (
    Item(12_900, "Ceramic table lamp"),
    Item(48_900, "Espresso machine", PREPARING),
    Item(2_490, "Linen cushion cover"),
    Item(259_900, "Oak dining table"),
    Item(1_290, "Beeswax candles, set of four"),
    Item(4_450, "Cast iron trivet, pair"),
    Item(1_990, "Glass carafe"),
    Item(3_900, "Wool throw", ON_ITS_WAY),
    Item(2_750, "Walnut chopping board"),
    Item(995, "Cotton napkins"),
    Item(4_990, "Wall clock"),
    Item(3_425, "Stoneware bowls, set of four", ON_ITS_WAY),
    Item(1_680, "Herb planter"),
    Item(2_190, "Copper measuring cups"),
    Item(6_000, "Desk lamp"),
    Item(7_990, "Bedside table"),
    Item(18_900, "Reading chair"),
    Item(9_450, "Cotton bed linen", ON_ITS_WAY),
    Item(14_900, "Wool rug"),
    Item(11_500, "Coat rack"),
    Item(8_240, "Knife set"),
    Item(16_990, "Floor lamp"),
    Item(12_350, "Bath towels, set of six"),
    Item(19_000, "Round mirror"),
)
GLOBEX = (
    Item(7_900, "USB-C docking station"),
    Item(3_490, "Mechanical number pad"),
    Item(24_900, "Noise cancelling headset"),
    Item(1_590, "Cable organiser"),
    Item(89_900, "Ultrawide monitor", PREPARING),
    Item(4_990, "Laptop sleeve"),
    Item(12_900, "Standing desk mat"),
    Item(5_990, "Webcam", ON_ITS_WAY),
    Item(2_290, "Travel adapter"),
    Item(219_900, "Workstation"),
)
FIRST_NAMES = (
    "Mara",
    "Jonas",
    "Wei",
    "Aylin",
    "Tomasz",
    "Lucía",
    "Noah",
    "Ingrid",
    "Kofi",
    "Elena",
    "Samuel",
)
LAST_NAMES = ("Lindt", "Becker", "Zhang", "Yılmaz", "Nowak", "Ortega", "Fischer", "Dahl", "Mensah", "Rossi")


def open_shop(db: Connection) -> None:
    """At the very first start only."""
    if db.execute("SELECT count(*) FROM orders").fetchone()[0] == 0:
        add_orders(db, "acme", ACME)
        add_orders(db, "globex", GLOBEX)


def more_orders(db: Connection, tenant: str, count: int, amount_minor: int | None) -> list[Row]:
    """Delivered orders whose numbers go on from the last one."""
    samples = [item for item in ACME if item.amount_minor < 5_000]
    wanted = [samples[number % len(samples)] for number in range(count)]
    return add_orders(db, tenant, [Item(amount_minor or item.amount_minor, item.title) for item in wanted])


def add_orders(db: Connection, tenant: str, items: Sequence[Item]) -> list[Row]:
    prefix, first = PREFIXES.get(tenant, (tenant, 1001))
    last = db.execute("SELECT max(number) FROM orders WHERE tenant = ?", (tenant,)).fetchone()[0]
    start = first if last is None else last + 1
    return [_add_order(db, tenant, prefix, number, item) for number, item in enumerate(items, start)]


def _add_order(db: Connection, tenant: str, prefix: str, number: int, item: Item) -> Row:
    order_id, customer = f"{prefix}-{number}", f"{prefix}-C{number}"
    first, last = FIRST_NAMES[number % len(FIRST_NAMES)], LAST_NAMES[number % len(LAST_NAMES)]
    insert(
        db, "customers", id=customer, tenant=tenant, name=f"{first} {last}",
        email=f"customer-{number}@{tenant}.example",
    )  # fmt: skip
    metadata = {"order": order_id, "tenant": tenant}
    charge = add_charge(db, ChargeWish(item.amount_minor, CURRENCY.lower(), customer, item.title, metadata))
    placed_at = books.now() - (6 + number % 5) * DAY_SECONDS
    insert(
        db, "orders", id=order_id, tenant=tenant, number=number, customer=customer, charge=charge["id"],
        amount=item.amount_minor, currency=CURRENCY, sku=f"SKU-{number}", title=item.title, placed_at=placed_at,
        carrier=CARRIERS[number % len(CARRIERS)], tracking=f"{number:04}{number * 7919 % 10_000_000:08}",
        shipped_at=None if item.shipment == PREPARING else placed_at + DAY_SECONDS,
        delivered_at=placed_at + 3 * DAY_SECONDS if item.shipment == DELIVERED else None,
    )  # fmt: skip
    row: Row = db.execute("SELECT * FROM orders WHERE id = ?", (order_id,)).fetchone()
    return row


def listed(row: Row) -> dict[str, Any]:
    """An order as the control door names it."""
    return {
        "id": row["id"],
        "tenant": row["tenant"],
        "charge": row["charge"],
        "amount_minor": row["amount"],
        "currency": row["currency"],
        "customer": row["customer"],
    }
