"""One tenant on real parts: PostgreSQL, the provider process, a driver in this process; books and rows to look at."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from agentops.engine import driver as engine
from agentops.engine.driver import Driver
from agentops.tenancy.models import Membership, Tenant, User
from approvals.models import Approval
from approvals.services import decide
from operations.models import Operation
from runs import events, queries
from runs.models import AgentRun, RunEvent
from tests import factories
from tests.provider import STRIPE_KEY, Provider

LOOK_SECONDS = 0.04
HOOK_SECRET = "whsec_stage"
SMALL, LARGE, CEILING = 2_490, 12_900, 259_900  # allowed; a person decides; denied


def eventually(holds: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """The first true answer of `holds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def together(*works: Callable[[], Any]) -> list[Any]:
    """All of `works` at the same moment, each in a thread of its own; what each returned or raised, in their order."""
    outcomes: list[Any] = [None] * len(works)
    gate = threading.Barrier(len(works))

    def one(place: int, work: Callable[[], Any]) -> None:
        gate.wait()
        with closing(connection):
            try:
                outcomes[place] = work()
            except Exception as error:
                outcomes[place] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes


@dataclass
class Stage:
    """Where a story is played: a tenant, the provider, and whoever works."""

    provider: Provider
    tenant: Tenant
    move_clock: Callable[[float], None]
    mail_folder: Path
    drivers: list[Driver] = field(default_factory=list)

    # --- what people and clients do ---------------------------------------------------------------------------------
    def order(self, amount_minor: int = SMALL) -> dict[str, Any]:
        wanted = {"tenant": self.tenant.slug, "count": 1, "amount_minor": amount_minor}
        return self.provider.door.post("/_orders", json=wanted).json()[0]

    def start(self, text: str, name: str = "support-agent", **more: Any) -> AgentRun:
        return factories.run(self.tenant, text, name=name, **more)

    def ask_refund(self, order: dict[str, Any], **more: Any) -> AgentRun:
        return self.start(f"My order {order['id']} arrived damaged, please refund it.", **more)

    def ask_cancel(self, order: dict[str, Any], **more: Any) -> AgentRun:
        return self.start(f"Cancel order {order['id']}.", **more)

    def reviewer(self, each_minor: int = 20_000, role: Any = Membership.Role.REVIEWER) -> User:
        return factories.person(self.tenant, role, each_minor=each_minor)

    def decide(self, approval: Approval, reviewer: User, verdict: str = "approve", **more: Any) -> Approval:
        given = {"reason": "Seen.", "proposal_digest": approval.proposal_digest, "channel": "rest", **more}
        return decide(self.tenant.id, approval.id, reviewer=reviewer, verdict=verdict, **given)

    # --- who works ---------------------------------------------------------------------------------------------------
    def driver(self, **more: Any) -> Driver:
        """A driver that works until the test ends, under a token of its own."""
        started = Driver(**{"owner": f"worker-{len(self.drivers)}-{self.tenant.slug}", **more}).start()
        self.drivers.append(started)
        return started

    def carry_on(
        self, run: AgentRun, until: Callable[[AgentRun], Any] | None = None, seconds: float = 20.0
    ) -> AgentRun:
        """Let a driver work until the run has ended, or `until` holds for it."""
        if not any(not each.draining for each in self.drivers):
            self.driver()
        reached = until or (lambda row: row.is_terminal)

        def look() -> AgentRun | None:
            row = AgentRun.objects.get(pk=run.pk)
            return row if reached(row) else None

        return eventually(look, f"{run} gets there, it is {shown(run)}", seconds)

    def as_time_passes(
        self, run: AgentRun, until: Callable[[AgentRun], Any] | None = None, *, speed: float = 100.0
    ) -> AgentRun:
        """The same while the database's clock runs ahead, `speed` times as fast as the provider's."""
        reached = until or (lambda row: row.is_terminal)
        for _ in range(400):
            with suppress(AssertionError):
                return self.carry_on(run, reached, LOOK_SECONDS)
            self.move_clock(LOOK_SECONDS * speed)
        return self.carry_on(run, reached, LOOK_SECONDS)

    def until_asked(self, run: AgentRun) -> Approval:
        """The run has asked a person and is parked."""
        self.carry_on(run, lambda row: row.status == "waiting_for_approval")
        return Approval.objects.get(operation__interests__run_id=run.pk, status="requested")

    def rest(self) -> None:
        """Stop every driver, leases handed back."""
        for each in self.drivers:
            each.stop(2)
        self.drivers.clear()

    # --- what can be seen --------------------------------------------------------------------------------------------
    def refunds(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return self.provider.door.get("/_books", params={"order": order["id"]}).json()["refunds"]

    def cancellations(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return [each for each in self.provider.books()["cancellations"] if each["order"] == order["id"]]

    def mails(self) -> list[Path]:
        return sorted(self.mail_folder.glob("*.eml"))


def shown(run: AgentRun) -> str:
    row = AgentRun.objects.get(pk=run.pk)
    operations = [f"{each.action}={each.status}" for each in Operation.objects.filter(run_id=run.pk)]
    return f"{row.status}/{row.ending}/{row.blocked_on} {operations} {row.error_code} {row.error_detail}"


def story(run: AgentRun) -> list[tuple[str, dict[str, Any]]]:
    """The run's log: type and data of every event, in order."""
    return [(row.type, events.opened(row)) for row in RunEvent.objects.filter(run_id=run.pk).order_by("seq")]


def types(run: AgentRun) -> list[str]:
    return [type for type, _ in story(run)]


def answer(run: AgentRun) -> str:
    found = queries.result(AgentRun.objects.get(pk=run.pk))
    return found["text"] if found else ""


def operation(run: AgentRun, action: str = "refund.create") -> Operation:
    return Operation.objects.get(interests__run_id=run.pk, action=action)


def sql(statement: str, *values: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, values)


@pytest.fixture
def stage(transactional_db: None, provider, move_clock, settings, monkeypatch) -> Iterator[Stage]:
    """A tenant with connections to the provider, and drivers that look around often."""
    settings.AGENTOPS_HOLD_SECONDS = 0
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(engine, "HOUSE_SECONDS", 0.1)
    tenant = factories.tenant("acme")  # the shop numbers its orders A-…
    connect(tenant, provider)
    made = Stage(provider, tenant, move_clock, settings.AGENTOPS_MAIL_DIR)
    yield made
    made.rest()


def connect(tenant: Tenant, provider: Provider) -> None:
    factories.connection(tenant, "stripe", provider.payments_url, STRIPE_KEY, HOOK_SECRET)
    factories.connection(tenant, "shop", provider.shop_url, "", HOOK_SECRET)
    factories.connection(tenant, "mail", "file:", "")
