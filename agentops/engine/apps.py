"""The engine as a Django app: it imports the agents and says at the start which model cannot be called."""

import os
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from agentops import llm
from agentops.sdk.agents import agents
from agentops.telemetry.logs import configure
from operations.connectors.registry import ACTIONS

from . import direct
from .doors import reaching_out

START = "start"  # the tag of checks that a start must pass, however quick it is meant to be


class EngineConfig(AppConfig):
    name = "agentops.engine"
    label = "engine"

    def ready(self) -> None:
        configure(json=settings.AGENTOPS_LOG_JSON)
        for module in settings.AGENTOPS_AGENTS:
            import_module(module)
        direct.register(ACTIONS)
        register(_model_can_be_called, START)
        register(_tools_have_one_door, START)


def _model_can_be_called(**_: Any) -> list[CheckMessage]:
    try:
        llm.check_model(settings.AGENTOPS_MODEL, os.environ)
    except llm.ModelUnavailable as error:
        return [Error(error.message, id="engine.E001")]
    return []


def _tools_have_one_door(**_: Any) -> list[CheckMessage]:
    return [Error(fault, id="engine.E002") for fault in reaching_out(agents())]
