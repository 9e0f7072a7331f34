"""The driver's life inside a Celery worker: a bootstep starts and stops it; it needs the threads pool."""

import os
import signal
from typing import Any

from celery import bootsteps
from celery.signals import setup_logging, worker_shutting_down
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from agentops import llm
from agentops.kernel.clock import refuse_moved_clock
from agentops.telemetry.logs import configure

from . import driver


class DriverStep(bootsteps.StartStopStep):
    """After the pool is up; stopped before it is taken down."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        if "thread" not in type(worker.pool).__module__ + str(worker.pool_cls):
            raise ImproperlyConfigured(
                "The worker needs `-P threads`: under prefork its driver would live in the parent and its tasks elsewhere."
            )
        try:
            llm.check_model(settings.AGENTOPS_MODEL, os.environ)
        except llm.ModelUnavailable as error:
            raise ImproperlyConfigured(error.message) from None
        refuse_moved_clock()
        llm.warm_up(settings.AGENTOPS_MODEL)
        driver.install(driver.Driver(worn_out=_end_in_order).start())

    def close(self, worker: Any) -> None:
        present = driver.current()
        if present is not None:
            present.drain()

    def stop(self, worker: Any) -> None:
        present = driver.current()
        if present is not None:
            present.stop()
            driver.install(None)

    def terminate(self, worker: Any) -> None:
        present = driver.current()
        if present is not None:
            present.stop(patience_seconds=0)


def _end_in_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # whoever keeps this process alive starts another


@worker_shutting_down.connect
def _drain(**_: Any) -> None:
    # In the signal handler, at once: a flag and a wake-up, no lock, no I/O. The bootstep's close may come much later.
    present = driver.current()
    if present is not None:
        present.drain()


@setup_logging.connect
def _logging(loglevel: Any = None, **_: Any) -> None:
    configure(json=settings.AGENTOPS_LOG_JSON)
