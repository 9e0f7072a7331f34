"""The built-in agent says of one operation what became of it, and claims neither way where nobody knows."""

from agentops.engine import direct
from agentops.sdk import OutcomeUnknown
from agentops.sdk.agents import agent as registered
from agentops.sdk.testing import Rehearsal, rehearse


def test_an_unknown_outcome_is_neither_done_nor_not_done():
    def unknown(proposal):
        raise OutcomeUnknown("op_1")

    wanted = direct.asking("note.add", target="notes:acme", params={"text": "x"}, reference="1")
    told = rehearse(registered(direct.NAME), wanted, Rehearsal(outcome=unknown))
    assert told[-1].text == "Unknown, a person is on it: op_1."
