"""The contract test: what a connector declares is tried out on its provider, in test mode, and graded by what was seen."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel.clock import now
from agentops.kernel.ids import show, uuid7

from .connectors.base import Answer, Call, CheckFailed, Request, Trial, Window
from .connectors.registry import CONNECTORS
from .dispatch import rehearse
from .grades import declared, grade_of
from .models import Connection
from .services import credential, idempotency_key
from .states import Grade, Outcome, Verdict

LOOK_SECONDS = 0.05  # between looks for an effect that is not seen yet
MAX_PAGES = 20  # of a list, in which the effect of a moment ago should stand
THERE = (Verdict.APPLIED, Verdict.ACCEPTED)
ABILITIES = (
    "honours_idempotency_keys",
    "key_lifetime_seconds",
    "refuses_changed_body",
    "replays_errors",
    "can_look_up",
    "look_up_lag_seconds",
    "can_list",
)


class CannotTry(Exception):
    """The contract test cannot be run over this connection: says why, and what to do."""


@dataclass(frozen=True)
class Proof:
    """What was found out about one ability: a code, and the values that it rests on."""

    ability: str
    outcome: Outcome
    code: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, Any]:
        return {
            "ability": self.ability,
            "outcome": self.outcome.value,
            "code": self.code,
            "values": dict(self.values),
        }


def prove(connection: Connection, *, target: str = "", wait_seconds: float = 0.0) -> Iterator[Proof]:
    """Try every ability out, one proof after the other as it is found. Raises CannotTry before anything was sent.

    `wait_seconds`: how long to wait before the key is tried once more; a whole lifetime is nothing that a test can wait.
    """
    if connection.mode != "test":
        raise CannotTry(
            f"{connection} is live: the contract test really changes something. Name a connection in test mode."
        )
    connector = CONNECTORS[connection.connector]
    try:
        trial = connector.trial(ground(connection, target))
    except CheckFailed as failed:
        raise CannotTry(failed.detail) from failed
    can = declared(connection)
    if trial is None:
        for ability in ABILITIES:
            is_declared = bool(getattr(can, ability))
            yield Proof(ability, Outcome.NOT_PROVED if is_declared else Outcome.NOT_DECLARED, "no_trial")
        return
    yield from _Contract(connection, trial).proofs(wait_seconds)


def ground(connection: Connection, target: str = "") -> Call:
    """A call over a connection with no operation behind it."""
    trial_id = show("trial", uuid7())
    return Call(
        operation_id=trial_id,
        tenant=connection.tenant.slug,
        actor=f"tenant:{connection.tenant.slug}",
        agent="contract-test",
        action="",
        action_version=0,
        target_type="",
        target=target,
        params={},
        amount_minor=None,
        currency="",
        idempotency_key=idempotency_key(connection.tenant_id, trial_id, 0),
        generation=0,
        provider_ref="",
        base_url=connection.base_url,
        credential=credential(connection),
        timeout_seconds=settings.AGENTOPS_SEND_SECONDS,
    )


@transaction.atomic
def give_grade(connection: Connection, proofs: Sequence[Proof], actor: Actor) -> Grade:
    """Store what was proved, with the connector's version, and what it is worth."""
    grade = grade_of({proof.ability for proof in proofs if proof.outcome == Outcome.PROVED})
    version = CONNECTORS[connection.connector].version
    told = {proof.ability: proof.outcome.value for proof in proofs}
    before = {"grade": connection.grade, "version": connection.graded_version}
    connection.grade, connection.graded_version, connection.graded_at = grade, version, now()
    connection.proofs = [proof.stored for proof in proofs]
    connection.save(update_fields=["grade", "graded_version", "graded_at", "proofs"])
    record(
        connection.tenant_id,
        "connection.graded",
        "connection",
        str(connection.id),
        actor,
        before=before,
        after={"grade": grade.value, "version": version},
        detail=told,
    )
    return grade


class _Contract:
    """One trial, sent and asked for as dispatch and recovery would."""

    def __init__(self, connection: Connection, trial: Trial) -> None:
        self.connection = connection
        self.connector = CONNECTORS[connection.connector]
        self.can = declared(connection)
        self.trial = trial
        self.reference = ""
        self.requests: dict[int, Request] = {}

    def proofs(self, wait_seconds: float) -> Iterator[Proof]:
        before = self._look_up()
        first = self._send(self.trial.call)
        if first.verdict not in THERE:
            for ability in ABILITIES:
                yield self._of(ability, Outcome.NOT_PROVED, "trial_not_done", answer=_said(first))
            return
        self.reference, sent_at = first.provider_ref, time.monotonic()
        seen = self._seen(before)
        keys = self._keys()
        yield keys
        yield self._lifetime(keys, sent_at, wait_seconds)
        yield self._changed_body()
        yield self._errors()
        yield from seen
        yield self._listed()

    def _of(self, ability: str, outcome: Outcome, code: str = "", **values: Any) -> Proof:
        if not getattr(self.can, ability):
            return Proof(ability, Outcome.NOT_DECLARED)
        return Proof(ability, outcome, code, values)

    def _seen(self, before: Answer) -> list[Proof]:
        """A look-up finds nothing before, and the effect after; the time between is the lag."""
        if not self.can.can_look_up:
            return [
                self._of(ability, Outcome.NOT_PROVED) for ability in ("can_look_up", "look_up_lag_seconds")
            ]
        declared_seconds, began = self.can.look_up_lag_seconds, time.monotonic()
        after = self._look_up()
        while after.verdict == Verdict.ABSENT and time.monotonic() - began <= declared_seconds:
            _pause(LOOK_SECONDS)
            after = self._look_up()
        took = round(time.monotonic() - began, 2)
        found = after.verdict in THERE and after.provider_ref == self.reference
        values = {"before": before.verdict.value, "after": _said(after), "reference": after.provider_ref}
        lag = {"declared_seconds": declared_seconds, "seen_seconds": took}
        if before.verdict == Verdict.ABSENT and found:
            return [
                self._of("can_look_up", Outcome.PROVED, "found_after_not_before", **values),
                Proof("look_up_lag_seconds", Outcome.PROVED, "found_in_time", lag),
            ]
        if Verdict.UNREACHABLE in (before.verdict, after.verdict):
            return [self._of("can_look_up", Outcome.NOT_PROVED, "unreachable", **values)]
        if before.verdict == after.verdict == Verdict.ABSENT:
            return [
                self._of("can_look_up", Outcome.NOT_PROVED, "not_found", **values),
                Proof("look_up_lag_seconds", Outcome.CONTRADICTED, "not_found_in_time", lag),
            ]
        return [self._of("can_look_up", Outcome.CONTRADICTED, "found_something_else", **values)]

    def _keys(self) -> Proof:
        """The same bytes under the same key: the same reference, and still one effect."""
        again = self._send(self.trial.call)
        values = {"first": self.reference, "again": again.provider_ref, "answer": _said(again)}
        if again.verdict in THERE and again.provider_ref == self.reference:
            return self._of("honours_idempotency_keys", Outcome.PROVED, "same_effect", **values)
        if again.provider_ref and again.provider_ref != self.reference:
            return self._of("honours_idempotency_keys", Outcome.CONTRADICTED, "second_effect", **values)
        return self._of("honours_idempotency_keys", Outcome.NOT_PROVED, "no_answer_to_it", **values)

    def _lifetime(self, keys: Proof, sent_at: float, wait_seconds: float) -> Proof:
        ability, declared_seconds = "key_lifetime_seconds", self.can.key_lifetime_seconds
        if keys.outcome != Outcome.PROVED:
            return self._of(ability, Outcome.NOT_PROVED, "keys_not_proved")
        _pause(wait_seconds)
        again = self._send(self.trial.call)
        age = round(time.monotonic() - sent_at, 2)
        values = {"declared_seconds": declared_seconds, "held_seconds": age}
        if again.verdict in THERE and again.provider_ref == self.reference:
            return self._of(ability, Outcome.PROVED, "held_so_long", **values)
        if again.verdict in THERE and age < declared_seconds:
            return self._of(ability, Outcome.CONTRADICTED, "forgotten", **values)
        return self._of(ability, Outcome.NOT_PROVED, "no_answer_to_it", **values)

    def _changed_body(self) -> Proof:
        ability = "refuses_changed_body"
        if self.trial.changed is None:
            return self._of(ability, Outcome.NOT_PROVED, "nothing_to_try")
        answer = self._send(self.trial.changed)
        values = {"answer": _said(answer), "reference": answer.provider_ref}
        if answer.verdict == Verdict.CONTRADICTION and answer.provider_ref in ("", self.reference):
            return self._of(ability, Outcome.PROVED, "refused", **values)
        if answer.provider_ref:
            return self._of(ability, Outcome.CONTRADICTED, "taken", **values)
        return self._of(ability, Outcome.NOT_PROVED, "no_answer_to_it", **values)

    def _errors(self) -> Proof:
        """What was refused is asked again under its key: a stored refusal comes back marked as stored."""
        ability = "replays_errors"
        if self.trial.refused is None:
            return self._of(ability, Outcome.NOT_PROVED, "nothing_to_try")
        first, again = self._send(self.trial.refused), self._send(self.trial.refused)
        values = {"first": _said(first), "again": _said(again)}
        if (first.verdict, again.verdict) == (Verdict.REFUSED, Verdict.SPENT):
            return self._of(ability, Outcome.PROVED, "stored", **values)
        if (first.verdict, again.verdict) == (Verdict.REFUSED, Verdict.REFUSED):
            return self._of(ability, Outcome.CONTRADICTED, "decided_anew", **values)
        return self._of(ability, Outcome.NOT_PROVED, "no_answer_to_it", **values)

    def _listed(self) -> Proof:
        """The effect stands in the provider's list of what happened lately, under the mark of its owner."""
        if not self.can.can_list:
            return self._of("can_list", Outcome.NOT_DECLARED)
        at, cursor, count = now(), "", 0
        window = Window(at - timedelta(minutes=10), at + timedelta(minutes=10))
        for _ in range(MAX_PAGES):
            try:
                page = self.connector.list_effects(self.trial.call, window, cursor)
            except CheckFailed as failed:
                return self._of("can_list", Outcome.NOT_PROVED, "cannot_be_asked", answer=failed.code)
            found = [each for each in page.effects if each.provider_ref == self.reference]
            if found and found[0].operation_id == self.trial.call.operation_id:
                return self._of("can_list", Outcome.PROVED, "listed", reference=self.reference)
            count, cursor = count + len(page.effects), page.cursor
            if found or not cursor:
                break
        return self._of("can_list", Outcome.CONTRADICTED, "not_listed", count=count)

    def _send(self, call: Call) -> Answer:
        """As dispatch would: the bytes are built once, and sent again only as those."""
        if id(call) not in self.requests:
            self.requests[id(call)] = self.connector.build(call)
        return rehearse(self.connection, call, self.requests[id(call)])

    def _look_up(self) -> Answer:
        return self.connector.look_up(self.trial.call)


def _said(answer: Answer) -> str:
    return f"{answer.verdict.value}/{answer.code}" if answer.code else answer.verdict.value


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
