"""uvicorn as we run it: streams end when the process is told to stop, readers that do not read are cut off."""

import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from django.conf import settings

HIGH_WATER_BYTES = 64 * 1024  # uvicorn's own mark: above it a writer waits
GRACE_SECONDS = 5


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stalled: dict[Any, int] = {}  # connection -> seconds for which its buffer has been full

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's own: streams say goodbye first, and the signal is not raised again, so we exit with 0."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        if self.started:
            self.lifespan.state["live"].close()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._cut_off_stalled()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in self._stalled:
            connection.transport.abort()
        await super().shutdown(sockets)

    def _cut_off_stalled(self) -> None:
        """Once a second. A writer to a full buffer cannot end itself, and a closed transport would wait for ever."""
        stalled = {}
        for connection in list(self.server_state.connections):
            if connection.transport.get_write_buffer_size() > HIGH_WATER_BYTES:
                stalled[connection] = self._stalled.get(connection, 0) + 1
                if stalled[connection] > settings.AGENTOPS_STREAM_STALL_SECONDS:
                    connection.transport.abort()
        self._stalled = stalled


def server(host: str, port: int) -> Server:
    return Server(
        uvicorn.Config(
            "agentops.asgi:application",
            host=host,
            port=port,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(settings.AGENTOPS_PROXIES),
            forwarded_allow_ips=settings.AGENTOPS_PROXIES,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ws="websockets-sansio",
            ws_max_size=16 * 1024,
            ws_ping_interval=20,
            ws_ping_timeout=20,
        )
    )
