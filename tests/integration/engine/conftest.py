from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from agentops.sdk import Agent, Call, Limits, Reply, tool
from agentops.sdk.agents import separate_registry
from tests.stage import stage

__all__ = ["stage"]


class Outcome(BaseModel):
    said: str


@pytest.fixture
def test_agent() -> Iterator[Callable[..., str]]:
    """`test_agent(work)` is the name of an agent whose one tool, called `calls` times, is `work(ctx)`; it tells the last
    result. `same` lets every call ask for the very same."""
    with separate_registry():

        def make(
            work: Callable[[Any], Any],
            *,
            calls: int = 1,
            same: bool = False,
            limits: Limits | None = None,
            **declared: Any,
        ) -> str:
            def try_it(ctx, number: int) -> Outcome:
                """Do what the test wants."""
                return Outcome(said=str(work(ctx)))

            def answer(conversation):
                results = [message for message in conversation if message.role == "tool"]
                if len(results) < calls:
                    return Reply("", (Call("try_it", {"number": 0 if same else len(results)}),))
                last = results[-1]
                return Reply(last.result["said"] if last.ok else last.result["error"]["message"])

            made = tool(**{"timeout_seconds": 10.0, **(declared or {"reads": True})})(try_it)
            Agent("tester", instructions="x", tools=[made], offline=answer, limits=limits or Limits())
            return "tester"

        yield make
