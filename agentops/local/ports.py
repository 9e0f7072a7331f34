"""Free ports on the loopback address."""

import random
import socket

HOST = "127.0.0.1"
# Below the range that Linux and macOS give to outgoing connections: a port stays free while its server restarts.
_RANGE = range(15_000, 32_000)


def is_free(port: int) -> bool:
    """False as well when another program listens on all addresses, which some systems would let us share."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            return False
    with socket.socket() as probe:
        # A connection of the last run that is still winding down must not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def find_free(avoid: set[int]) -> int:
    return next(
        port for port in iter(lambda: random.choice(_RANGE), None) if port not in avoid and is_free(port)
    )
