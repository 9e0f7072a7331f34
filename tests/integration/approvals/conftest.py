from collections.abc import Callable, Iterator

import pytest

from agentops.engine import driver as engine
from tests.ledger import ledger
from tests.stage import Stage, stage
from tests.world import World, still_world, world

__all__ = ["ledger", "stage", "still_world", "world"]


@pytest.fixture
def stage_of(monkeypatch) -> Iterator[Callable[[World], Stage]]:
    """Drivers for a world: what its agents propose goes to the provider in this process."""
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(engine, "HOUSE_SECONDS", 0.1)
    made: list[Stage] = []

    def on(of: World) -> Stage:
        made.append(Stage(None, of.tenant, of.move_clock, None))  # type: ignore[arg-type]  # neither is here
        return made[-1]

    yield on
    for each in made:
        each.rest()
