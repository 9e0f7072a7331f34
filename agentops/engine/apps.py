"""The engine as a Django app."""

from django.apps import AppConfig


class EngineConfig(AppConfig):
    name = "agentops.engine"
    label = "engine"
