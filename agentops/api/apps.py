"""The api as a Django app."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "agentops.api"
    label = "api"
