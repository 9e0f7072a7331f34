"""What can be made to go wrong, for how many writes, and at which door.

A fault without `door` meets the writes of both doors. Three of the modes speak of money alone (`pending_then`,
`bounce_after`, `wrong_amount`): a write of the shop passes them by and uses up none of their `times`. The two that
meet look-ups as well (`unreachable`, `auth_failed`) leave the shop alone unless `door` says "shop", so that an outage
of the payments is not one of the order look-ups too. The abilities hold at both doors.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal, get_args

Door = Literal["payments", "shop"]
DEFAULT_SECONDS = 1.0


class Mode(StrEnum):
    OK = "ok"  # clears everything, the abilities too
    SLOW = "slow"  # waits `seconds` before the commit
    SLOW_AFTER = "slow_after"  # commits, then waits `seconds` with the answer
    COMMIT_THEN_DROP = "commit_then_drop"
    COMMIT_THEN_500 = "commit_then_500"  # the 500 is stored under the key and replayed
    DROP_BEFORE_COMMIT = "drop_before_commit"
    REJECT = (
        "reject"  # refused with `code` (and `status`, an HTTP status), without effect, stored under the key
    )
    PENDING_THEN = "pending_then"  # accepted, and `status` after `seconds`
    UNREACHABLE = "unreachable"  # the door's own port refuses connections
    RATE_LIMITED = "rate_limited"
    AUTH_FAILED = "auth_failed"
    BOUNCE_AFTER = "bounce_after"  # succeeded, and failed after `seconds`, the amount given back
    EMPTY_200 = "empty_200"  # 200, an empty body, and no effect
    WRONG_AMOUNT = "wrong_amount"  # the answer names another amount; the books hold the right one


class Ability(StrEnum):
    NO_KEY_SUPPORT = "no_key_support"  # every write is executed, whatever its key
    FORGET_KEYS_AFTER = "forget_keys_after"  # `seconds`
    LOOKUP_LAG = "lookup_lag"  # look-ups show no effect younger than `seconds`


MONEY_ONLY = {Mode.PENDING_THEN, Mode.BOUNCE_AFTER, Mode.WRONG_AMOUNT}
MEETS_LOOKUPS = {Mode.UNREACHABLE, Mode.AUTH_FAILED}
SETTLED_STATUSES = ("succeeded", "failed", "canceled", "requires_action")
ABILITIES = [ability.value for ability in Ability]
NAMES = [mode.value for mode in Mode] + ABILITIES


class BadFault(ValueError):
    """Says in one sentence what was wrong with the request for a fault."""


@dataclass(frozen=True)
class Fault:
    mode: Mode = Mode.OK
    times: int | None = None  # None: until changed
    seconds: float = DEFAULT_SECONDS
    code: str | None = None
    status: str | int | None = None
    door: Door | None = None

    def meets(self, door: Door) -> bool:
        if self.door is not None:
            return self.door == door
        return door == "payments" or self.mode not in MONEY_ONLY | MEETS_LOOKUPS


NO_FAULT = Fault()


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fault = NO_FAULT
        self._abilities: dict[Ability, float] = {}
        self._on_change: Callable[[], None] = lambda: None

    def on_change(self, tell: Callable[[], None]) -> None:
        self._on_change = tell

    def order(self, wanted: dict[str, Any]) -> None:
        """Set one mode or turn on one ability (`seconds: 0` turns a timed one off); in force when this returns."""
        name = wanted.get("mode")
        if not isinstance(name, str) or name not in NAMES:
            raise BadFault(f"mode {name!r} is not known; it is one of: {', '.join(NAMES)}")
        with self._lock:
            if name in ABILITIES:
                self._turn_on(Ability(name), _seconds(wanted))
            else:
                self._fault = _fault(Mode(name), wanted)
                if self._fault.mode is Mode.OK:
                    self._abilities.clear()
        self._on_change()

    def _turn_on(self, ability: Ability, seconds: float) -> None:
        self._abilities[ability] = seconds
        if seconds == 0 and ability is not Ability.NO_KEY_SUPPORT:
            del self._abilities[ability]

    def take(self, door: Door) -> Fault:
        """The fault that this write meets; uses up one of its `times`."""
        with self._lock:
            fault = self._fault
            if not fault.meets(door):
                return NO_FAULT
            if fault.times is None:
                return fault
            self._fault = replace(fault, times=fault.times - 1) if fault.times > 1 else NO_FAULT
        self._on_change()
        return fault

    def at_lookup(self, door: Door) -> Fault:
        fault = self._fault
        return fault if fault.mode in MEETS_LOOKUPS and fault.meets(door) else NO_FAULT

    def reachable(self, door: Door) -> bool:
        return self.at_lookup(door).mode is not Mode.UNREACHABLE

    @property
    def keys_are_honoured(self) -> bool:
        return Ability.NO_KEY_SUPPORT not in self._abilities

    @property
    def key_seconds(self) -> float | None:
        return self._abilities.get(Ability.FORGET_KEYS_AFTER)

    @property
    def lag_seconds(self) -> float:
        return self._abilities.get(Ability.LOOKUP_LAG, 0.0)

    def shown(self) -> dict[str, Any]:
        with self._lock:
            abilities = {
                ability.value: True if ability is Ability.NO_KEY_SUPPORT else seconds
                for ability, seconds in self._abilities.items()
            }
            return {**asdict(self._fault), "abilities": abilities, "modes": NAMES}


def _seconds(wanted: dict[str, Any]) -> float:
    seconds = wanted.get("seconds", DEFAULT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise BadFault("seconds is a number, zero or more")
    return float(seconds)


def _fault(mode: Mode, wanted: dict[str, Any]) -> Fault:
    times, code, status, door = (wanted.get(name) for name in ("times", "code", "status", "door"))
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise BadFault("times is a whole number, one or more; leave it out for: until changed")
    if code is not None and not isinstance(code, str):
        raise BadFault("code is a text")
    if mode is Mode.PENDING_THEN and status is None:
        status = "succeeded"
    if mode is Mode.PENDING_THEN and status not in SETTLED_STATUSES:
        raise BadFault(f"status is one of: {', '.join(SETTLED_STATUSES)}")
    if mode is Mode.REJECT and status is not None and status not in range(400, 500):
        raise BadFault("status of a reject is an HTTP status from 400 to 499")
    if door is not None and door not in get_args(Door):
        raise BadFault("door is payments or shop; leave it out for both")
    if door == "shop" and mode in MONEY_ONLY:
        raise BadFault(f"{mode} speaks of money; the shop has none")
    return Fault(mode, times, _seconds(wanted), code, status, door)
