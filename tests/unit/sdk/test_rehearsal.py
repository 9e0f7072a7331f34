"""The rehearsal context keeps the promises of the engine's that a tool can notice."""

import pytest

from agentops.sdk import DuplicateStep, JournalMismatch, StepContext
from agentops.sdk.testing import Rehearsal


def test_a_completed_step_is_answered_from_the_journal():
    ctx, done = Rehearsal(), []

    def work(step: StepContext, what: str) -> str:
        done.append(step.id)
        return what.upper()

    assert ctx.step("shout", work, "hello") == "HELLO"
    ctx.begin(ctx.call_id)
    assert ctx.step("shout", work, "hello") == "HELLO"
    assert done == ["turn-1/call-0/shout"]


def test_a_name_used_twice_needs_a_key():
    ctx = Rehearsal()
    ctx.step("count", lambda step, n: n, 1)
    with pytest.raises(DuplicateStep):
        ctx.step("count", lambda step, n: n, 2)
    assert ctx.step("count", lambda step, n: n, 2, key="second") == 2


def test_a_replay_with_other_arguments_is_refused():
    ctx = Rehearsal()
    ctx.step("count", lambda step, n: n, 1)
    ctx.begin(ctx.call_id)
    with pytest.raises(JournalMismatch):
        ctx.step("count", lambda step, n: n, 2)
