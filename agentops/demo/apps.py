"""The demo as a Django app: its commands."""

from django.apps import AppConfig


class DemoConfig(AppConfig):
    name = "agentops.demo"
    label = "demo"
