"""Every point at which a worker can die × every way in which a provider misbehaves × keys or none × what becomes of the run.

The provider's books decide: no effect twice, none lost, and no row settled by a guess.
"""

import os
import time
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from agentops.sdk.values import Receipt
from operations.connectors.registry import CONNECTORS
from operations.models import Operation
from tests.ledger import POINTS, Ledger, S, assert_honest, assert_told, effects

SLOW_SECONDS, IMPATIENT_SECONDS = 0.3, 0.15
MODES: dict[str, dict[str, Any]] = {
    "ok": {},
    "slow": {"seconds": SLOW_SECONDS},
    "slow_after": {"seconds": SLOW_SECONDS},
    "commit_then_drop": {},
    "commit_then_500": {},
    "drop_before_commit": {},
    "reject": {"code": "charge_disputed"},
    "pending_then": {"seconds": 0.0},
    "pending_then failed": {"seconds": 0.0, "status": "failed"},
    "unreachable": {},
    "rate_limited": {},
    "auth_failed": {},
    "bounce_after": {"seconds": 0.05},
    "empty_200": {},
    "wrong_amount": {},
    "forget_keys_after": {"seconds": 0.001},
    "lookup_lag": {"seconds": 60.0},
}
LASTS = ("unreachable", "auth_failed")  # until it is mended
LAGS = ("lookup_lag",)  # until the provider has caught up
FATES = ("alive", "cancelled", "replaced")
MAY_NOT_SUCCEED = {
    "reject": {S.FAILED, S.SUCCEEDED},
    "pending_then failed": {S.FAILED},
    "bounce_after": {S.FAILED, S.SUCCEEDED},
    "empty_200": {S.ESCALATED, S.SUCCEEDED},
}


class Cell:
    """One order: asked for, died upon, and carried on by others as far as machines can."""

    def __init__(self, ledger: Ledger, point: str, mode: str, keys: bool, fate: str) -> None:
        self.ledger, self.point, self.mode, self.keys, self.fate = ledger, point, mode, keys, fate
        self.is_on = False
        self.order, self.run = ledger.order(), ledger.run()

    def break_it(self) -> float | None:
        times = {} if self.mode in LASTS else {"times": 1}
        self.ledger.provider.fault(self.mode.split()[0], door="payments", **times, **MODES[self.mode])
        self.is_on = True
        return IMPATIENT_SECONDS if "slow" in self.mode else None

    def mend(self) -> None:
        """What lasts comes to its end, what is slow to its effect, what was accepted is settled."""
        if not self.is_on:
            return
        if self.mode in LASTS:
            self.ledger.provider.fault("ok")
            if not self.keys:
                self.ledger.provider.fault("no_key_support")
        elif self.mode in LAGS:
            self.ledger.provider.fault(self.mode, seconds=0)
        elif seconds := MODES[self.mode].get("seconds", 0.0):
            time.sleep(seconds)
        self.is_on = False

    def live(self) -> None:
        ledger = self.ledger
        ledger.before_sending = self.break_it
        with ledger.crashing(self.point):
            ledger.ask(self.run, self.order)
        if self.mode in LASTS + LAGS and self.is_on:  # the first look of those who come after meets it too
            for made in ledger.operations(self.order):
                ledger.carry_on(made)
        self.mend()
        if self.fate != "alive":
            ledger.cancel(self.run)
        if self.fate == "replaced":
            self.run = ledger.run()
        if self.fate != "cancelled":
            ledger.ask(self.run, self.order, owner="another")
        for made in ledger.operations(self.order):
            ledger.settle(made, self.mend)
        ledger.before_sending = None

    def judge(self) -> str:
        books, made = self.ledger.refunds(self.order), self.ledger.operations(self.order)
        assert sum(len(effects(each, books)) for each in made) <= 1, books
        assert len(books) <= 1, books
        for each in made:
            assert_honest(each, books)
            assert_told(each)
        last = made[-1] if made else None
        if self.fate == "alive":
            assert last is not None
            self.judge_the_living(last)
        return f"{last.status if last else 'nothing'}"

    def judge_the_living(self, made: Operation) -> None:
        """Nothing is lost: what can be found out or sent once more under its key is, and its run is told."""
        wanted = MAY_NOT_SUCCEED.get(self.mode, {S.SUCCEEDED})
        if not self.keys:
            wanted = wanted | {S.ESCALATED}
        assert made.status in wanted, (made.status, made.error_code)
        if made.status == S.SUCCEEDED:
            said = self.ledger.ask(self.run, self.order, owner="the last one")
            assert isinstance(said, Receipt)
            assert said.provider_ref == made.provider_ref


def cells(keys: bool) -> list[tuple[str, str, str]]:
    """Every point × every mode; each with one fate in turn, so that every fate meets every point and every mode.

    MATRIX=full in the environment takes every fate with each of them.
    """
    whole = product(enumerate(POINTS), enumerate(MODES), enumerate(FATES))
    return [
        (point, mode, fate)
        for (i, point), (j, mode), (k, fate) in whole
        if os.environ.get("MATRIX") == "full" or (i + j + keys) % len(FATES) == k
    ]


@pytest.mark.parametrize("keys", [True, False], ids=["with keys", "without keys"])
def test_whenever_a_worker_dies_and_whatever_the_provider_does(ledger, monkeypatch, keys):
    if not keys:
        stripe = CONNECTORS["stripe"]
        weaker = replace(stripe.abilities, honours_idempotency_keys=False, key_lifetime_seconds=0)
        monkeypatch.setattr(type(stripe), "abilities", weaker)
    ends: Counter[str] = Counter()
    for point, mode, fate in cells(keys):
        ledger.provider.fault("ok")
        if not keys:
            ledger.provider.fault("no_key_support")
        cell = Cell(ledger, point, mode, keys, fate)
        try:
            cell.live()
            ends[cell.judge()] += 1
        except Exception as error:
            raise AssertionError(f"{point} × {mode} × {fate}: {error}") from error
    print(f"\n{sum(ends.values())} lives ended: {dict(ends)}")
