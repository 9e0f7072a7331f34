"""The kernel as a Django app: it owns the clock function and the schema's SQL functions."""

from django.apps import AppConfig


class KernelConfig(AppConfig):
    name = "agentops.kernel"
    label = "kernel"
