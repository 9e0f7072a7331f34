"""The broker (Valkey or Redis) for what may be lost: counters and hints, never the truth."""

from functools import cache

from django.conf import settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

ANSWER_SECONDS = 0.5


@cache
def broker() -> Redis:
    """One client a process. It gives up soon: no request waits long for what it can do without."""
    return Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 1),  # once, for a connection that a restart of the broker has cut
    )
