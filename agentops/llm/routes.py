"""Which models may be called, and what is missing where one may not: read without loading any provider's client."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from agentops.llm.errors import ModelUnavailable

OFFLINE = "offline"

KEY_VARIABLES = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
}
"""`openai` speaks the Responses API, `openai-chat` Chat Completions, which compatible servers speak too."""


def split(model: str) -> tuple[str, str]:
    """`anthropic:claude-sonnet-4-5` as provider and name; `ModelUnavailable` for anything else."""
    provider, _, name = model.partition(":")
    if provider not in KEY_VARIABLES or not name:
        raise ModelUnavailable(
            f"Model {model!r} is not known: set AGENTOPS_MODEL to offline, anthropic:<name> or openai:<name>."
        )
    return provider, name


def check_model(model: str, env: Mapping[str, str]) -> None:
    """Raise `ModelUnavailable`, with the next step, unless this model may and can be called."""
    if model == OFFLINE:
        return
    provider, _ = split(model)
    allowed = [
        pattern.strip() for pattern in env.get("AGENTOPS_MODEL_ALLOW", "").split(",") if pattern.strip()
    ]
    if allowed and not any(fnmatchcase(model, pattern) for pattern in allowed):
        raise ModelUnavailable(
            f"Model {model} is not on the allow-list: add it to AGENTOPS_MODEL_ALLOW or choose another model."
        )
    if not env.get(KEY_VARIABLES[provider], "").strip():
        raise ModelUnavailable(
            f"Model {model} needs a key: set {KEY_VARIABLES[provider]}, or AGENTOPS_MODEL=offline to do without."
        )
