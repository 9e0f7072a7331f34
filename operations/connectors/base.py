"""What a connector is: what it can do, what it must know beforehand, how it sends, how it looks up."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from operations.states import Verdict

type Json = Any
type Relation = Literal[">=", "<=", "=="]


@dataclass(frozen=True)
class Abilities:
    """What a provider can do after a lost answer. Proved by the contract test; recovery obeys it. Times in seconds."""

    honours_idempotency_keys: bool
    key_lifetime_seconds: int
    replays_errors: bool
    refuses_changed_body: bool
    can_look_up: bool
    look_up_lag_seconds: int
    can_list: bool


NOTHING = Abilities(
    honours_idempotency_keys=False,
    key_lifetime_seconds=0,
    replays_errors=False,
    refuses_changed_body=False,
    can_look_up=False,
    look_up_lag_seconds=0,
    can_list=False,
)


@dataclass(frozen=True)
class Guard:
    """What makes a fact matter: the fact must stand in this relation to the bound when the operation is sent."""

    relation: Relation
    bound: int | str | bool

    def holds(self, value: Any) -> bool:
        match self.relation:
            case "==":
                return bool(value == self.bound)
            case ">=":
                return isinstance(value, int) and isinstance(self.bound, int) and value >= self.bound
            case "<=":
                return isinstance(value, int) and isinstance(self.bound, int) and value <= self.bound


@dataclass(frozen=True)
class Fact:
    """Something that a proposal rests on, as read from the system that owns it."""

    name: str  # a code: "refundable_minor", "order_status"
    value: int | str | bool
    source: str  # whose word it is: "payments", "shop"
    guard: Guard | None = None


@dataclass(frozen=True)
class Field:
    """One line of what changes, as codes and values; sentences are made on reading. Money in minor units."""

    name: str  # a code: "refunded", "order_status"
    before: int | str | None
    after: int | str | None
    kind: Literal["money", "text", "code"] = "text"


@dataclass(frozen=True)
class Facts:
    """What `check` brings back: the facts, what would change, and the money that the target can still give."""

    facts: Sequence[Fact] = ()
    fields: Sequence[Field] = ()
    capacity_minor: int | None = None  # what was captured; None: no money here
    thing: str = ""  # what the money comes from, by the provider's name: "ch_…"
    theirs: Mapping[str, int] = field(
        default_factory=dict
    )  # effects at the provider: our operation id or "", minor units

    def broken_guards(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.guard is not None and not fact.guard.holds(fact.value)]


@dataclass(frozen=True)
class Action:
    """A kind of operation: its parameters, what its intent is, and what reviewers are told of it."""

    name: str  # dotted: "refund.create"
    version: int
    connector: str
    target_type: str
    params: type[BaseModel]
    intent: tuple[
        str, ...
    ]  # the parameters that are its business meaning, beside the reference; never free text
    amount: Callable[[Any], tuple[int, str] | None] = lambda params: None  # minor units, currency
    adjustable: tuple[
        str, ...
    ] = ()  # whole numbers that policy or a reviewer may lower before it is approved
    facts: Mapping[str, type] = field(
        default_factory=dict, hash=False
    )  # what `check` reads: rules speak of it
    guards_target: bool = True  # another one on the same target makes policy ask a person
    reverses: str = ""  # the action that it undoes
    # Seconds from the sending of what is in doubt. After them its run is told `OutcomeUnknown` and may answer, but not end;
    # None: it waits until the outcome is known.
    patience_seconds: float | None = None


@dataclass(frozen=True)
class Call:
    """One operation as its connector sees it: built from the committed record alone."""

    operation_id: str  # shown form, "op_…"
    tenant: str
    actor: str
    agent: str
    action: str
    action_version: int
    target_type: str
    target: str
    params: Mapping[str, Json]
    amount_minor: int | None
    currency: str
    idempotency_key: str
    generation: int
    provider_ref: str  # "" until one is known
    base_url: str
    credential: str = field(repr=False)
    timeout_seconds: float
    first_sent_at: datetime | None = None
    succeeded: bool = False  # we hold its receipt: an effect that is gone now was undone

    def asking(
        self, action: Action, target: str, params: Mapping[str, Json], money: tuple[int, str] = (0, "")
    ) -> "Call":
        """The same call for that action on that target."""
        return replace(
            self,
            action=action.name,
            action_version=action.version,
            target_type=action.target_type,
            target=target,
            params=params,
            amount_minor=money[0] if money[1] else None,
            currency=money[1],
        )

    @property
    def is_trial(self) -> bool:
        """It belongs to the contract test: no operation stands behind it."""
        return self.operation_id.startswith("trial_")


@dataclass(frozen=True)
class Request:
    """The exact bytes of one generation; sent again only as these bytes."""

    method: str
    path: str
    body: bytes
    api_version: str = ""


@dataclass(frozen=True)
class Answer:
    """What one answer, look-up or message says. `receipt` is the provider's proof, as plain JSON, without secrets."""

    verdict: Verdict
    provider_ref: str = ""
    receipt: Mapping[str, Json] | None = None
    code: str = ""
    detail: str = ""  # masked before it is stored
    amount_minor: int | None = None
    currency: str = ""
    retry_after_seconds: float | None = None


@dataclass(frozen=True)
class Told:
    """One effect that a provider tells of or lists: whose it says it is, and the effect as the provider shows it."""

    operation_id: str  # the operation that it names, "op_…"; "" for none
    provider_ref: str
    effect: Mapping[str, Json]
    amount_minor: int | None = None
    currency: str = ""
    key_digest: str = ""  # what names the key that it was made under: see `key_digest`
    thing: str = ""  # what it changed, by the provider's name: "ch_…"


@dataclass(frozen=True)
class Window:
    """A stretch of the provider's time."""

    since: datetime
    until: datetime


@dataclass(frozen=True)
class Page:
    """Some of a list of effects; `cursor` leads to the next page, "" where this is the last."""

    effects: Sequence[Told]
    cursor: str = ""


@dataclass(frozen=True)
class Intent:
    """What an effect of ours was meant to be, as far as the effect itself tells."""

    action: Action
    target: str
    params: Mapping[str, Json]


@dataclass(frozen=True)
class Message:
    """A message whose signature holds. `told_at` is the provider's time of what it tells, `signed_at` of this delivery.

    `told` is None where it speaks of nothing that we do.
    """

    event_id: str
    type: str
    told_at: datetime
    signed_at: datetime
    told: Told | None = None


class NotSigned(Exception):
    """The message is not signed with the secret of this connection, or is no message at all."""


@dataclass(frozen=True)
class Trial:
    """What the contract test sends in test mode: it really happens there, and harms nobody."""

    call: Call
    changed: Call | None = None  # the same key, another body
    refused: Call | None = (
        None  # refused when it is executed, so that a provider with a memory would keep that answer
    )


def key_digest(idempotency_key: str) -> str:
    """What names our key in a provider's metadata, where a key itself must not be read."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()[:16]


class PastSendBy(Exception):
    """`send_by` had passed when the first byte was to leave: surely not sent."""


class CheckFailed(Exception):
    """The system that owns the facts cannot be read now, or refuses: `code` tells which; nothing was proposed."""

    def __init__(self, code: str, detail: str, *, retryable: bool) -> None:
        super().__init__(detail)
        self.code, self.detail, self.retryable = code, detail, retryable


class Connector(ABC):
    """A provider: small, without state, safe to use from several threads."""

    name: ClassVar[str]
    version: ClassVar[int]
    abilities: ClassVar[Abilities]
    actions: ClassVar[tuple[Action, ...]]

    def abilities_at(self, base_url: str) -> Abilities:
        """What it can do over that connection; recovery asks this one."""
        return self.abilities

    def enrich(self, call: Call) -> Mapping[str, Json]:
        """The parameters as they will be approved, sealed and sent, with what the proposer is not asked for.

        Called once, before the proposal is digested. Raises CheckFailed.
        """
        return call.params

    def trial(self, ground: Call) -> Trial | None:
        """What the contract test may send over a connection in test mode, made from `ground`; None for nothing.

        `ground.target` is what the person who tests has named for it, "" for nothing. Raises CheckFailed.
        """
        return None

    def reversal(self, call: Call) -> Mapping[str, Json]:
        """The parameters of the action that undoes this one, from its committed record.

        Asked only where an action names it in `reverses`. Raises CheckFailed.
        """
        raise CheckFailed("not_reversible", f"{self.name} undoes nothing.", retryable=False)

    @abstractmethod
    def check(self, call: Call) -> Facts:
        """Read what the proposal rests on. Raises CheckFailed."""

    @abstractmethod
    def build(self, call: Call) -> Request:
        """The request of this generation, byte for byte; nothing is sent."""

    @abstractmethod
    def send(self, call: Call, request: Request, before_first_byte: Callable[[], None]) -> Answer:
        """Send exactly `request`, once. Calls `before_first_byte` last before anything leaves (it may raise PastSendBy).

        Never raises for anything that the provider or the network does: every outcome is an Answer.
        """

    @abstractmethod
    def look_up(self, call: Call) -> Answer:
        """Ask whether the operation took effect: by reference, by key or by operation id. Read-only, never raises."""

    def list_effects(self, ground: Call, window: Window, cursor: str) -> Page:
        """The provider's effects in a window, ours and everybody's, page by page from `cursor` ("" begins).

        The same window shows the same effects however often it is begun again. Raises CheckFailed.
        """
        raise CheckFailed("not_listed", f"{self.name} lists no effects.", retryable=False)

    def tell(self, effect: Mapping[str, Json]) -> Told | None:
        """One effect as the provider shows it, read without trust; None where it is nothing that we do."""
        return None

    def intent_of(self, told: Told) -> Intent | None:
        """What an effect of ours was meant to be; None where it does not tell enough to be an operation."""
        return None

    def read_hook(self, headers: Mapping[str, str], body: bytes, secret: str) -> Message:
        """Read a message that the provider has sent to us. Raises NotSigned."""
        raise NotSigned(f"{self.name} sends no messages.")

    def hear(self, call: Call, told: Told) -> Answer:
        """What a message says about the operation. Nothing is asked of the provider."""
        return Answer(Verdict.UNKNOWN, code="not_heard")  # it sends none, and lists none
