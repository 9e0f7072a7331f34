"""The worker's bootstep: where it refuses to begin."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from agentops.celery import app
from agentops.engine import driver
from agentops.engine.worker import DriverStep


def test_under_prefork_the_start_is_refused_with_the_reason():
    worker = app.WorkController(pool_cls="prefork", concurrency=1)
    with pytest.raises(
        ImproperlyConfigured, match="`-P threads`: under prefork its driver would live in the parent"
    ):
        DriverStep(worker).start(worker)
    assert driver.current() is None
