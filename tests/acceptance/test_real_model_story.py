"""The same agent on a real model: its provider's wire format over real HTTP, the refund in the provider's books."""

import pytest

from agentops import llm
from runs.models import AgentRun, Step
from runs.states import RunStatus
from tests.acceptance.model_server import ModelServer, support_model
from tests.stage import LARGE, answer, stage, story

__all__ = ["stage"]

MODELS = [
    ("anthropic:claude-sonnet-4-6", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ""),
    ("openai:gpt-5.2", "OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1"),
]


@pytest.mark.parametrize(("model", "key", "address", "under"), MODELS, ids=["anthropic", "openai"])
def test_the_story_runs_on_a_real_model_and_its_cost_is_counted(
    stage, settings, monkeypatch, model, key, address, under
):
    with ModelServer(support_model) as server:
        settings.AGENTOPS_MODEL = model
        monkeypatch.setenv(key, "sk-test-SECRET-123456789")
        monkeypatch.setenv(address, server.url + under)
        llm.warm_up(model)  # as a worker does at its start
        order = stage.order(LARGE)
        run = stage.ask_refund(order)
        approval = stage.until_asked(run)
        stage.decide(approval, stage.reviewer())
        run = stage.carry_on(run)
    assert run.status == RunStatus.COMPLETED, run.error_detail
    (refund,) = stage.refunds(order)
    assert refund["id"] in answer(run)
    turns = Step.objects.filter(run_id=run.pk, kind="model")
    assert turns.count() == 4
    assert run.spent_microusd == sum(turn.cost_microusd for turn in turns) > 0
    assert "SECRET-123456789" not in str(story(run))
    assert AgentRun.objects.get(pk=run.pk).steps_taken == 7
