"""Tenants, tokens, and one refund at each of its stations, made by the services that make them in production."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from agentops.audit.entries import SYSTEM
from agentops.tenancy.models import Membership, Tenant, User
from agentops.tenancy.principals import SCOPES
from approvals.models import Approval
from approvals.policy import Verdict
from approvals.services import submit
from approvals.states import Outcome
from operations.connectors.base import Answer, Facts, Field
from operations.connectors.base import Verdict as Evident
from operations.connectors.registry import CONNECTORS
from operations.dispatch import call_of, commit_attempt
from operations.evidence import Evidence
from operations.findings import take
from operations.models import Operation
from operations.moves import Locked, lock
from operations.services import intend, propose
from operations.states import Source
from runs.models import AgentRun
from tests import factories

PROOF = {"id": "re_1", "object": "refund", "amount": 48900, "currency": "eur", "status": "succeeded"}


@dataclass
class Caller:
    """A client that signs with one token."""

    token: str

    def get(self, path: str, **headers: str) -> Any:
        return Client().get(path, headers=self._headers(headers))

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        given = self._headers(headers) | ({"Idempotency-Key": key} if key is not None else {})
        text = body if isinstance(body, str | bytes) else "" if body is None else json.dumps(body)
        return Client().post(path, text, content_type="application/json", headers=given)

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return {"Authorization": f"Bearer {self.token}"} | named


def _tenant(slug: str) -> Tenant:
    tenant = factories.tenant(slug)
    factories.connection(tenant, "stripe", "http://127.0.0.1:9")
    return tenant


@pytest.fixture
def acme(db):
    return _tenant("acme")


@pytest.fixture
def globex(db):
    return _tenant("globex")


@pytest.fixture
def caller_of():
    """`caller_of(tenant)` may do all but decide; `caller_of(tenant, "runs:read", person=rosa)` what it is given."""

    def make(tenant: Tenant, *scopes: str, person: User | None = None) -> Caller:
        wanted = scopes or [scope for scope in SCOPES if scope != "approvals:decide"]
        return Caller(factories.token(tenant, *wanted, person=person))

    return make


@pytest.fixture
def caller(acme, caller_of):
    return caller_of(acme)


@pytest.fixture
def person():
    def make(
        tenant: Tenant, name: str, role: str = Membership.Role.REVIEWER, limit_minor: int | None = None
    ) -> User:
        return factories.person(tenant, Membership.Role(role), name=name, each_minor=limit_minor)

    return make


@pytest.fixture
def reviewer(acme, person, caller_of):
    """A caller whose token is bound to a person who may approve up to 1,000 EUR."""
    rosa = person(acme, "rosa", limit_minor=100_000)
    return caller_of(acme, "runs:read", "approvals:read", "approvals:decide", person=rosa)


@pytest.fixture
def a_run():
    """A queued run, started by a token of its own."""
    return factories.run


@pytest.fixture
def a_refund():
    """A refund that `run` proposes, and what policy says to it: by default a person is asked."""

    def make(
        run: AgentRun, order: str = "A-1002", outcome: Outcome = Outcome.REQUIRE_APPROVAL
    ) -> tuple[Operation, Approval | None]:
        params = {
            "charge": "ch_1",
            "order": order,
            "line": "1",
            "amount_minor": 48900,
            "currency": "EUR",
            "reason": "damaged",
        }
        facts = Facts(fields=[Field("refunded", 0, 48900, "money")])
        verdict = Verdict(
            outcome,
            "refund.limit",
            ("refund.limit",),
            sentences={"en": "Above the limit.", "zh": "超过上限。"},
        )
        intended = intend(
            run, "refund.create", target=f"order:{order}", params=params, reference=f"{order}/1"
        )
        with transaction.atomic():
            locked = AgentRun.objects.select_for_update().get(pk=run.pk)
            proposed = propose(locked, f"turn-1/call-0/{order}", intended, SYSTEM, may_ask_again=bool)
            approval = submit(proposed.locked, verdict, facts, SYSTEM)
        return Operation.objects.get(pk=proposed.operation.pk), approval

    return make


@pytest.fixture
def sent():
    """An allowed operation with one request on the wire whose answer has not come."""

    def make(operation: Operation) -> Operation:
        with transaction.atomic():
            locked: Locked = lock(operation.id)
            call = call_of(
                Operation.objects.select_related("connection", "tenant", "run").get(pk=operation.pk)
            )
            commit_attempt(locked, call, CONNECTORS["stripe"].build(call), "worker")
        return Operation.objects.get(pk=operation.pk)

    return make


@pytest.fixture
def settled(sent):
    """An allowed operation that was sent, with the provider's proof."""

    def make(operation: Operation) -> Operation:
        sent(operation)
        return take(operation.id, Evidence(Source.ANSWER, Answer(Evident.APPLIED, "re_1", PROOF), attempt=1))

    return make
