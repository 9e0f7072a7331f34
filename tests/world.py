"""A small provider in this process, behind a connector of its own: its facts can be moved, its books count what was sent.

All of the product is real: proposing, rules, people, dispatch. What costs time elsewhere, a process and its wire, is not here.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest
from django.db import transaction
from pydantic import BaseModel, ConfigDict
from pydantic import Field as Limit

from agentops.audit.entries import Actor
from agentops.kernel.canonical import serialise
from agentops.tenancy.models import Tenant, User
from approvals import services
from approvals.models import Approval
from approvals.policy import evaluate
from operations.connectors import registry
from operations.connectors.base import (
    Abilities,
    Action,
    Answer,
    Call,
    Connector,
    Fact,
    Facts,
    Field,
    Guard,
    Request,
)
from operations.dispatch import dispatch
from operations.models import Operation
from operations.services import intend, propose, read_facts
from operations.states import Verdict
from runs.models import AgentRun
from runs.services import lock
from tests import factories

AMOUNT = 40_000
AGENT = Actor("agent:support-agent", "worker")


class GiftParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    account: str
    amount_minor: Annotated[int, Limit(gt=0, lt=10**9, strict=True)]
    currency: Annotated[str, Limit(pattern=r"^[A-Z]{3}$")]
    memo: str = ""


GIFT = Action(
    name="gift.send",
    version=1,
    connector="world",
    target_type="account",
    params=GiftParams,
    intent=("account", "amount_minor", "currency"),
    amount=lambda params: (params.amount_minor, params.currency),
    adjustable=("amount_minor",),
    facts={"status": str, "refundable_minor": int, "owner": str, "tier": str},
    guards_target=False,
)


class WorldConnector(Connector):
    name = "world"
    version = 1
    abilities = Abilities(
        honours_idempotency_keys=True,
        key_lifetime_seconds=24 * 3600,
        replays_errors=True,
        refuses_changed_body=True,
        can_look_up=True,
        look_up_lag_seconds=0,
        can_list=False,
    )
    actions = (GIFT,)

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.books: dict[str, dict[str, Any]] = {}
        self.answers: list[Answer] = []  # what the next writes are answered, with nothing done
        self.before_sending: Callable[[], None] = lambda: None
        self.reset()

    def reset(self) -> None:
        self.facts = {"status": "open", "refundable_minor": 50_000, "owner": "C-1", "tier": "gold"}

    def check(self, call: Call) -> Facts:
        now = self.facts
        amount = call.params["amount_minor"]
        return Facts(
            facts=[
                Fact("status", now["status"], "bank", Guard("==", "open")),
                Fact("refundable_minor", now["refundable_minor"], "bank", Guard(">=", amount)),
                Fact("owner", now["owner"], "shop", Guard("==", "C-1")),
                Fact("tier", now["tier"], "shop"),
            ],
            fields=[Field("refunded", 0, amount, "money")],
        )

    def build(self, call: Call) -> Request:
        return Request("POST", "/gifts", serialise(dict(call.params)))

    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        self.before_sending()
        before_first_byte()
        if self.answers:
            return self.answers.pop(0)
        effect = {"operation_id": call.operation_id, "body": request.body, **call.params}
        self.books.setdefault(call.idempotency_key, effect)
        return Answer(Verdict.APPLIED, f"gift_{call.idempotency_key[3:9]}", {"amount": call.amount_minor})

    def look_up(self, call: Call) -> Answer:
        if call.idempotency_key in self.books:
            return Answer(Verdict.APPLIED, f"gift_{call.idempotency_key[3:9]}", {"amount": call.amount_minor})
        return Answer(Verdict.ABSENT)


@dataclass
class World:
    tenant: Tenant
    connector: WorldConnector
    move_clock: Callable[[float], None]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, **more: Any) -> AgentRun:
        return factories.run(self.tenant, "A gift, please.", **more)

    def propose(
        self, run: AgentRun | None = None, *, amount_minor: int = AMOUNT, memo: str = "", account: str = ""
    ) -> Operation:
        """A gift on an account of its own, through policy, as an agent's tool proposes it."""
        run = run or self.run()
        account = account or f"acc-{next(self.numbers)}"
        params = {"account": account, "amount_minor": amount_minor, "currency": "EUR", "memo": memo}
        asked = intend(run, GIFT.name, target=f"account:{account}", params=params, reference=account)
        asked = read_facts(asked)
        verdict = evaluate(run, asked)
        with transaction.atomic():
            again = services.may_ask_again(verdict, asked.facts)
            step = f"turn-1/call-{run.operations.count()}"
            made = propose(lock(run.tenant_id, run.id), step, asked, AGENT, may_ask_again=again)
            if made.is_new:
                services.submit(made.locked, verdict, asked.facts, AGENT)
        return made.operation

    def ask(self, run: AgentRun | None = None, **proposal: Any) -> Approval:
        return self.open_of(self.propose(run, **proposal))

    def open_of(self, operation: Operation) -> Approval:
        return Approval.objects.select_related("operation").get(operation=operation, status="requested")

    def decide(self, approval: Approval, person: User, verdict: str = "approve", **more: Any) -> Approval:
        given = {"reason": "Seen.", "proposal_digest": approval.proposal_digest, "channel": "rest", **more}
        return services.decide(self.tenant.id, approval.id, reviewer=person, verdict=verdict, **given)

    def send(self, operation: Operation) -> Operation:
        """One dispatch."""
        return dispatch(operation.id, services.AUTHORITY, worker="test")

    def sent(self, operation: Operation) -> list[dict[str, Any]]:
        books = self.connector.books.values()
        return [each for each in books if each["operation_id"] == operation.public_id]


def with_version(action: Action, version: int) -> Action:
    return replace(action, version=version)


def _world(move_clock: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    settings.AGENTOPS_HOLD_SECONDS = 0
    connector = WorldConnector()
    monkeypatch.setitem(registry.CONNECTORS, "world", connector)
    monkeypatch.setitem(registry.ACTIONS, GIFT.name, GIFT)
    tenant = factories.tenant("acme")
    factories.connection(tenant, "world", "http://127.0.0.1:9")
    factories.policy(tenant, GIFT.name, factories.ASK)
    return World(tenant, connector, move_clock)


@pytest.fixture
def world(transactional_db: None, move_clock, settings, monkeypatch) -> World:
    """With real commits, since sending lets go of the database."""
    return _world(move_clock, settings, monkeypatch)


@pytest.fixture
def still_world(db: None, move_clock, settings, monkeypatch) -> World:
    """Within one transaction: for everything up to the sending."""
    return _world(move_clock, settings, monkeypatch)
