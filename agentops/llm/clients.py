"""Real models: one client per event loop, provider and key, which never retries on its own.

Each request on the wire is then one turn of ours, with its own time-outs and its own place in the budget.
"""

import asyncio
import os
from collections.abc import Callable
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from agentops.llm.errors import ModelUnavailable
from agentops.llm.routes import KEY_VARIABLES, OFFLINE, check_model, split
from agentops.llm.scripted import scripted
from agentops.llm.turns import TurnSettings
from agentops.sdk.agents import OfflineScript

_models: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, ...], Model]] = WeakKeyDictionary()


def model_for(name: str, offline: OfflineScript | None, settings: TurnSettings) -> Model:
    """The model behind a name, refused where it is not allowed or its key is missing."""
    if name == OFFLINE:
        if offline is None:
            raise ModelUnavailable("This agent has no offline script: set AGENTOPS_MODEL to a real model.")
        return scripted(offline)
    check_model(name, os.environ)
    provider, model_name = split(name)
    key = os.environ[KEY_VARIABLES[provider]].strip()
    base_url = os.environ.get(f"{provider.removesuffix('-chat').upper()}_BASE_URL", "").strip()
    of_this_loop = _models.setdefault(asyncio.get_running_loop(), {})
    identity = name, key, base_url, str(settings.connect_seconds), str(settings.silence_seconds)
    if identity not in of_this_loop:
        timeout = httpx2.Timeout(settings.silence_seconds, connect=settings.connect_seconds)
        of_this_loop[identity] = _builder(provider)(model_name, key, base_url or None, timeout)
    return of_this_loop[identity]


def load(name: str) -> None:
    """Import what `model_for` needs for this model: a second or two for each provider's client."""
    if name != OFFLINE:
        _builder(split(name)[0])


def _builder(provider: str) -> Callable[[str, str, str | None, httpx2.Timeout], Model]:
    # Imports stand here because each client is slow to load and most installations use one of them, or none.
    if provider == "anthropic":
        from agentops.llm.anthropic_client import anthropic_model

        return anthropic_model
    from agentops.llm.openai_client import chat_model, responses_model

    return responses_model if provider == "openai" else chat_model


def request_settings(name: str, settings: TurnSettings) -> ModelSettings:
    """What goes with each request; OpenAI is asked not to keep what customers write."""
    common = ModelSettings(max_tokens=settings.max_output_tokens, request_timeout=settings.deadline_seconds)
    if name.startswith("openai"):
        return {**common, "openai_store": False}  # type: ignore[typeddict-unknown-key]
    return common
