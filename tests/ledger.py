"""The ledger without a driver: proposed, sent, crashed and looked up in this process, so that a whole life costs little.

`Ledger.ask` is one life of a run at one step, through the same door as an agent's tool; `Ledger.settle` is what machines
do afterwards, from one due time to the next. A `Crash` is no Exception: nothing that a worker does on its way out happens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from agentops.audit.entries import SYSTEM
from agentops.audit.models import AuditEntry
from agentops.engine import settle as engine_settle
from agentops.engine.control import cancel_run
from agentops.engine.live import Waiting
from agentops.kernel.clock import Now, now
from agentops.sdk.errors import OperationRefused
from agentops.tenancy.models import Tenant
from approvals.models import Approval
from approvals.services import AUTHORITY, decide
from operations import dispatch, moves, outcomes, queries
from operations.connectors import wire
from operations.connectors.registry import CONNECTORS
from operations.models import Incident, Operation
from operations.reconcile import carry_on
from operations.states import FINAL, OperationStatus
from runs.models import AgentRun, RunEvent
from tests import factories
from tests.provider import Provider

S = OperationStatus
POINTS = ("F0", "F1", "F2", "F3", "F4", "F5")
STEP = "turn-1/call-0/refund.create"
CHARGED, REFUNDED = 5_000, 1_000  # a part, so that no limit of the provider hides a second one


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Life:
    """What `settle` asks of a leased run."""

    id: UUID
    tenant_id: int
    public_id: str
    owner: str
    epoch: int


@dataclass
class Ledger:
    """One tenant, many orders, and a provider that can be told to misbehave at the moment of sending."""

    provider: Provider
    tenant: Tenant
    move_clock: Callable[[float], None]
    principal: Any
    orders: list[dict[str, Any]] = field(default_factory=list)
    crash_at: str = ""
    # Called once, last before the next request leaves; answers how long that one is waited for.
    before_sending: Callable[[], float | None] | None = None
    sends: int = 0  # requests that this process began to send since it was last told where to die

    # --- what agents do ---------------------------------------------------------------------------------------------
    def order(self) -> dict[str, Any]:
        if not self.orders:
            wanted = {"tenant": self.tenant.slug, "count": 200, "amount_minor": CHARGED}
            self.orders = self.provider.door.post("/_orders", json=wanted).json()
        return self.orders.pop()

    def run(self) -> AgentRun:
        return factories.run(self.principal, "Refund it.")

    def life(self, run: AgentRun, owner: str = "one") -> Life:
        """The run is leased anew; whoever held it before is a zombie."""
        AgentRun.objects.filter(pk=run.pk).update(
            status="running", lease_owner=owner, lease_epoch=run.lease_epoch + 1, lease_expires_at=Now()
        )
        run.refresh_from_db()
        return Life(run.id, run.tenant_id, run.public_id, owner, run.lease_epoch)

    def ask(
        self, run: AgentRun, order: dict[str, Any], step: str = STEP, owner: str = "one", **more: Any
    ) -> Any:
        """What the tool is answered in this life of the run: a Receipt, an OperationRefused, or Waiting."""
        params = {
            "charge": order["charge"], "order": order["id"], "line": f"{order['id']}-1", "amount_minor": REFUNDED,
            "currency": "EUR", "reason": "damaged", "note": "", **more,
        }  # fmt: skip
        line = f"{order['id']}-1"
        return self._settled(run, step, "refund.create", f"order:{order['id']}", params, line, owner)

    def _settled(
        self,
        run: AgentRun,
        step: str,
        action: str,
        target: str,
        params: dict[str, Any],
        reference: str,
        owner: str = "one",
    ) -> Any:
        life = self.life(run, owner)
        given = {"target": target, "params": params, "reference": reference}
        try:
            return engine_settle.settle(life, step, action, lambda: None, **given)
        except (Waiting, OperationRefused) as outcome:
            return outcome

    def note(self, run: AgentRun, reference: str, step: str = STEP) -> Any:
        target, params = f"notes:{self.tenant.slug}", {"text": "Call back on Monday."}
        return self._settled(run, step, "note.add", target, params, reference)

    def mail(
        self, run: AgentRun, order: dict[str, Any], ref: str, step: str = "turn-1/call-1/mail.send"
    ) -> Any:
        params = {
            "template": "refund-receipt", "to_customer": order["customer"], "order": order["id"],
            "amount_minor": REFUNDED, "currency": "EUR", "refund_ref": ref,
        }  # fmt: skip
        return self._settled(run, step, "mail.send", f"customer:{order['customer']}", params, ref)

    def approve(self, made: Operation) -> None:
        """A person lets it happen."""
        approval = Approval.objects.get(operation=made, status="requested")
        given = {"reason": "Seen.", "proposal_digest": approval.proposal_digest, "channel": "rest"}
        reviewer = factories.person(self.tenant)
        decide(self.tenant.id, approval.id, reviewer=reviewer, verdict="approve", **given)

    def cancel(self, run: AgentRun) -> None:
        cancel_run(self.tenant.id, run.id, actor=SYSTEM, reason="Called off.")

    # --- what machines do -------------------------------------------------------------------------------------------
    def carry_on(self, operation: Operation, worker: str = "two") -> Operation:
        """Once, at the time at which it is due."""
        left = ((operation.next_attempt_at or now()) - now()).total_seconds()
        if left > 0:
            self.move_clock(left + 0.001)
        return carry_on(operation.id, AUTHORITY, worker=worker)

    def settle(self, operation: Operation, between: Callable[[], None] = lambda: None) -> Operation:
        """From one due time to the next, until it has ended or a person is asked; `between` is called after each look."""
        for _ in range(40):
            operation.refresh_from_db()
            if operation.is_final or operation.status in (S.ESCALATED, S.PENDING):
                return operation
            operation = self.carry_on(operation)
            between()
        raise AssertionError(f"it goes round in circles: {operation.status} {operation.error_code}")

    # --- what can be seen -------------------------------------------------------------------------------------------
    def refunds(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        return self.provider.door.get("/_books", params={"order": order["id"]}).json()["refunds"]

    def operations(self, order: dict[str, Any]) -> list[Operation]:
        return list(Operation.objects.filter(target_name=order["id"]).order_by("id"))

    @contextmanager
    def crashing(self, point: str) -> Iterator[None]:
        """The process dies at that point, if it gets there."""
        self.crash_at, self.sends = point, 0
        try:
            yield
        except Crash:
            connection.close()
        finally:
            self.crash_at = ""


def dies_where_it_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the six points into this process, each where the code really passes."""
    submit, body, append, take = engine_settle.submit, wire._body, moves.append, dispatch.take
    sending = False

    def at(point: str) -> bool:
        return ledger.crash_at == point

    def submitted(*args: Any, **more: Any) -> Any:
        submit(*args, **more)
        if at("F0"):
            raise Crash

    def sent(send: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(call: Any, *args: Any) -> Any:
            nonlocal sending
            ledger.sends += 1
            if at("F1"):
                raise Crash
            if ledger.before_sending is not None:
                before, ledger.before_sending = ledger.before_sending, None
                call = replace(call, timeout_seconds=before() or call.timeout_seconds)
            sending = True
            try:
                answer = send(call, *args)
            finally:
                sending = False
            if at("F2") or at("F3"):
                raise Crash
            return answer

        return wrapped

    def read(*args: Any) -> bytes:
        if at("F2") and sending:
            raise Crash
        return body(*args)

    def appended(*args: Any) -> Any:
        if at("F4") and ledger.sends:
            raise Crash
        return append(*args)

    def taken(*args: Any) -> Any:
        outcome = take(*args)
        if at("F5"):
            raise Crash
        return outcome

    monkeypatch.setattr(engine_settle, "submit", submitted)
    monkeypatch.setattr(wire, "_body", read)
    monkeypatch.setattr(moves, "append", appended)
    monkeypatch.setattr(outcomes, "append", appended)
    monkeypatch.setattr(dispatch, "take", taken)
    for connector in CONNECTORS.values():
        monkeypatch.setattr(connector, "send", sent(connector.send))


@pytest.fixture
def ledger(transactional_db, provider, move_clock, settings, monkeypatch) -> Ledger:
    settings.AGENTOPS_HOLD_SECONDS = 0
    tenant = factories.tenant("acme")
    factories.connection(tenant, "stripe", provider.payments_url)
    factories.connection(tenant, "shop", provider.shop_url, "")
    factories.connection(tenant, "mail", "file:", "")
    factories.policy(tenant, "order.cancel", factories.ALWAYS)
    made = Ledger(provider, tenant, move_clock, factories.principal(tenant))
    dies_where_it_is_told(made, monkeypatch)
    return made


def effects(made: Operation, books: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The effects in the books that carry this operation, living ones."""
    mine = [each for each in books if each["operation_id"] == made.public_id]
    return [each for each in mine if each.get("status") not in ("failed", "canceled")]


def assert_honest(made: Operation, books: list[dict[str, Any]]) -> None:
    """No row is settled by a guess: succeeded only with its effect in the books, ended otherwise only without."""
    living = effects(made, books)
    why = f"{made.status} {made.error_code}: {books}"
    assert len(living) <= 1, why
    receipt = queries.receipt(made)
    assert (receipt is not None) == (made.status == S.SUCCEEDED), why
    if made.status == S.SUCCEEDED:
        assert made.provider_ref in [each["id"] for each in books], why
        assert living or made.reversed_at or books[0].get("status") == "failed", why
    if made.status in FINAL - {S.SUCCEEDED}:
        assert not living, why
    if made.status == S.ESCALATED:
        assert Incident.objects.filter(about=made.public_id, closed_at=None).exists(), why
    run = AgentRun.objects.get(pk=made.run_id)
    assert not (run.finished_at and made.status not in FINAL), "alive under a run that has ended"


def assert_told(made: Operation) -> None:
    """One audit entry for each move, and one event as long as the run lives."""
    of_run = RunEvent.objects.filter(run_id=made.run_id, type__startswith="operation.")
    moves_told = of_run.exclude(type__in=["operation.accepted", "operation.reversed"]).count()
    entries = AuditEntry.objects.filter(object_type="operation", object_id=made.public_id, security=False)
    kept = entries.exclude(verb="operation.reversed").count()
    assert kept == moves_told, (
        list(entries.values_list("verb", flat=True)),
        list(of_run.values_list("type", flat=True)),
    )
