"""Anthropic's Messages API."""

import httpx2
from anthropic import AsyncAnthropic
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider


def anthropic_model(name: str, key: str, base_url: str | None, timeout: httpx2.Timeout) -> Model:
    client = AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
