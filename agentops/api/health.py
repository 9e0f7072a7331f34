"""For load balancers and verifiers: is the process alive, can it serve, and with which key it signs."""

from collections.abc import Callable
from functools import cache

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from agentops.kernel.broker import broker
from agentops.telemetry.logs import logger
from agentops.tenancy import identity

log = logger(__name__)


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers. It asks nobody else, so that an outage elsewhere restarts nothing here."""
    return _uncached({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Whether requests can be served: each check is `ok`, or says what is wrong."""
    checks = {name: check() for name, check in CHECKS.items()}
    if all(result == "ok" for result in checks.values()):
        return _uncached({"status": "ready", "checks": checks})
    log.warning("not_ready", **checks)
    return _uncached({"status": "not_ready", "checks": checks}, status=503)


@require_safe
def jwks(request: HttpRequest) -> JsonResponse:
    response = JsonResponse(identity.jwks())
    response["Cache-Control"] = "public, max-age=300"
    return response


def _uncached(body: dict[str, object], status: int = 200) -> JsonResponse:
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"PostgreSQL does not answer ({type(error).__name__}); check DATABASE_URL and the server."
    return "ok"


def _migrations() -> str:
    try:
        applied = MigrationRecorder(connection).applied_migrations()
    except DatabaseError as error:
        return f"Cannot be read ({type(error).__name__})."
    missing = sorted(f"{app}.{name}" for app, name in _on_disk() if (app, name) not in applied)
    return f"Not applied: {', '.join(missing)}. Run `manage.py migrate`." if missing else "ok"


@cache
def _on_disk() -> frozenset[tuple[str, str]]:
    """The last migration of every app; the earlier ones are behind it."""
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


def _broker() -> str:
    try:
        broker().ping()
    except RedisError as error:
        return f"The broker does not answer ({type(error).__name__}); check REDIS_URL and the server."
    return "ok"


CHECKS: dict[str, Callable[[], str]] = {"database": _database, "migrations": _migrations, "broker": _broker}
