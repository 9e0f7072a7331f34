"""`manage.py serve`: the web process, one event loop for pages, API, streams and sockets."""

import errno
import socket
from argparse import ArgumentParser
from typing import Any, cast

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper

from agentops.kernel.clock import refuse_moved_clock
from agentops.streaming.server import server
from agentops.telemetry import logs


class Command(BaseCommand):
    help = "Serve pages, API, event streams and sockets until SIGTERM or Ctrl-C."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=settings.PORT, help="TCP port (PORT, %(default)s)")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        logs.configure(json=settings.AGENTOPS_LOG_JSON)
        bound = bind(host, port)
        try:
            refuse_moved_clock()
            server(host, port).run(sockets=[bound])
        finally:
            cast(DatabaseWrapper, connection).close_pool()  # or its threads hold up the exit for seconds


def bind(host: str, port: int) -> socket.socket:
    """The port, held from now on; it listens only once the application is ready."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"Port {port} on {host} is taken. Stop what listens there, or choose another with --port or PORT."
            ) from None
        raise CommandError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from None
    return bound
