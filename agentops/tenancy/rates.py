"""How often a caller may ask: counted in the broker, atomically, in windows of one minute."""

import math
import time
from dataclasses import dataclass
from typing import cast

from django.conf import settings
from redis.exceptions import RedisError

from agentops.kernel.broker import broker
from agentops.kernel.problems import TooMany
from agentops.telemetry.logs import logger

from .principals import Principal

log = logger(__name__)

WINDOW_SECONDS = 60
_BLIND_SECONDS = 5
_TAKE = """
local used = redis.call('INCR', KEYS[1])
if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {used, redis.call('PTTL', KEYS[1])}
"""

_blind_until = 0.0


@dataclass(frozen=True)
class Quota:
    """What is left of a caller's window, as the RateLimit header fields (draft-ietf-httpapi-ratelimit-headers) say it."""

    limit: int
    remaining: int
    reset_seconds: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Policy": f'"default";q={self.limit};w={WINDOW_SECONDS}',
            "RateLimit": f'"default";r={self.remaining};t={self.reset_seconds}',
        }


def take(principal: Principal) -> Quota | None:
    """Count one request of `principal`; raises TooMany above the limit. None: the broker is away, nobody is held up."""
    counted = _count(principal.name)
    if counted is None:
        return None
    used, left_ms = counted
    limit = settings.AGENTOPS_RATE_PER_MINUTE
    quota = Quota(limit, max(limit - used, 0), max(math.ceil(left_ms / 1000), 1))
    if used > limit:
        raise TooMany(
            f"This caller may send {limit} requests a minute. Send the next one in {quota.reset_seconds} s.",
            headers={**quota.headers, "Retry-After": str(quota.reset_seconds)},
        )
    return quota


def is_within(name: str, limit: int) -> bool:
    """Count one of what `name` says; whether there were at most `limit` in this window. Without the broker: yes."""
    counted = _count(name)
    return counted is None or counted[0] <= limit


def _count(name: str) -> list[int] | None:
    """How many there were in the present window, this one too, and the milliseconds that are left of it."""
    global _blind_until
    if time.monotonic() < _blind_until:
        return None
    try:
        key = f"agentops:rate:{name}"
        return cast(list[int], broker().eval(_TAKE, 1, key, str(WINDOW_SECONDS * 1000)))
    except RedisError as error:
        # A broker that hangs would cost every request its time-out: leave it alone for a moment.
        _blind_until = time.monotonic() + _BLIND_SECONDS
        log.warning("rate_not_counted", error=type(error).__name__, blind_seconds=_BLIND_SECONDS)
        return None
