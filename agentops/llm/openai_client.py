"""OpenAI's Responses API, and Chat Completions for servers that are compatible with it."""

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider


def responses_model(name: str, key: str, base_url: str | None, timeout: httpx2.Timeout) -> Model:
    return OpenAIResponsesModel(name, provider=_provider(key, base_url, timeout))


def chat_model(name: str, key: str, base_url: str | None, timeout: httpx2.Timeout) -> Model:
    # A stream that just ends is a connection that was lost, not an answer.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name, provider=_provider(key, base_url, timeout), profile=whole)


def _provider(key: str, base_url: str | None, timeout: httpx2.Timeout) -> OpenAIProvider:
    client = AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=timeout)
    return OpenAIProvider(openai_client=client)
