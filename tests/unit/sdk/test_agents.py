"""An agent is known by its name and pinned by its digest."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from agentops.sdk import Agent, Limits, ToolContext, tool
from agentops.sdk.agents import agent, agents, separate_registry
from agentops.sdk.errors import AgentDefinitionError


class Done(BaseModel):
    ok: bool = True


@tool(reads=True)
def look(ctx: ToolContext) -> Done:
    """Look."""
    return Done()


@tool(reads=True)
def peek(ctx: ToolContext) -> Done:
    """Peek."""
    return Done()


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with separate_registry():
        yield


def test_making_an_agent_registers_it():
    made = Agent("looker", instructions="Look.", tools=[look])
    assert agent("looker") is made
    assert made in agents()
    assert made.tool("look") is look
    assert made.tool("nothing") is None
    assert agent("nobody") is None


def test_the_same_definition_twice_is_no_mistake_and_another_one_is():
    Agent("looker", instructions="Look.", tools=[look])
    Agent("looker", instructions="Look.", tools=[look])
    with pytest.raises(AgentDefinitionError, match="looker"):
        Agent("looker", instructions="Look twice.", tools=[look])


def test_the_digest_pins_prompt_tools_limits_and_model():
    def digest(**changed: object) -> str:
        with separate_registry():
            return Agent(**{"name": "looker", "instructions": "Look.", "tools": [look]} | changed).digest

    changed = [
        digest(),
        digest(instructions="Look well."),
        digest(tools=[look, peek]),
        digest(tools=[peek, look]),
        digest(limits=Limits(steps=5)),
        digest(model="anthropic:claude-sonnet-4-5"),
    ]
    assert digest() == changed[0]
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x"},
        {"name": "Upper"},
        {"name": "1st"},
        {"name": "a" * 41},
        {"name": "with_underscore"},
        {"name": "looker\n"},
        {"instructions": "  "},
        {"tools": [look, look]},
        {"limits": Limits(steps=0)},
    ],
)
def test_an_agent_that_cannot_be_registered_is_refused(wrong: dict[str, object]):
    with pytest.raises(AgentDefinitionError):
        Agent(**{"name": "looker", "instructions": "Look.", "tools": [look]} | wrong)
    assert agent("looker") is None
