"""The command line as a Django app."""

from django.apps import AppConfig


class CliConfig(AppConfig):
    name = "agentops.cli"
    label = "cli"
