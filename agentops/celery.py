"""The Celery application: it starts, feeds, watches and stops the worker's driver."""

import os
from typing import Any

from celery import Celery
from celery.signals import import_modules

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")

app = Celery("agentops")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["agentops.engine"])


@import_modules.connect
def _add_driver(sender: Any = None, **_: Any) -> None:
    # Django is set up by now; importing the bootstep any earlier would need the models too soon.
    from agentops.engine.worker import DriverStep

    app.steps["worker"].add(DriverStep)
