"""The streaming as a Django app."""

from django.apps import AppConfig


class StreamingConfig(AppConfig):
    name = "agentops.streaming"
    label = "streaming"
