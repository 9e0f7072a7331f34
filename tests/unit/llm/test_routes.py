"""Which model may be called is said in one sentence with the next step, before any client is loaded."""

import subprocess
import sys

import pytest

from agentops.llm import ModelUnavailable, check_model

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-test", "OPENAI_API_KEY": "sk-test"}


@pytest.mark.parametrize(
    "model", ["offline", "anthropic:claude-sonnet-4-5", "openai:gpt-5", "openai-chat:local"]
)
def test_a_model_with_its_key_may_be_called(model: str):
    check_model(model, KEYS)


def test_offline_needs_nothing():
    check_model("offline", {"AGENTOPS_MODEL_ALLOW": "openai:gpt-5"})


@pytest.mark.parametrize(
    ("model", "env", "next_step"),
    [
        ("anthropic:claude-sonnet-4-5", {}, "set ANTHROPIC_API_KEY, or AGENTOPS_MODEL=offline"),
        ("openai:gpt-5", {"OPENAI_API_KEY": "  "}, "set OPENAI_API_KEY"),
        ("gemini:pro", KEYS, "set AGENTOPS_MODEL to offline"),
        ("anthropic:", KEYS, "set AGENTOPS_MODEL to offline"),
        ("gpt-5", KEYS, "set AGENTOPS_MODEL to offline"),
        ("", KEYS, "set AGENTOPS_MODEL to offline"),
        (
            "openai:gpt-5",
            KEYS | {"AGENTOPS_MODEL_ALLOW": "anthropic:*, openai:gpt-4"},
            "AGENTOPS_MODEL_ALLOW",
        ),
    ],
)
def test_any_other_is_refused_with_the_next_step(model: str, env: dict[str, str], next_step: str):
    with pytest.raises(ModelUnavailable) as refused:
        check_model(model, env)
    assert next_step in refused.value.message
    assert "sk-" not in refused.value.message


def test_the_allow_list_takes_patterns():
    check_model("anthropic:claude-x", KEYS | {"AGENTOPS_MODEL_ALLOW": "openai:gpt-4, anthropic:claude-*"})


def test_the_web_process_loads_no_library_of_a_model():
    heavy = ("pydantic_ai", "anthropic", "openai", "genai_prices", "httpx2", "django")
    loaded = subprocess.run(
        [sys.executable, "-c", f"import agentops.llm, sys; print([m for m in {heavy} if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
