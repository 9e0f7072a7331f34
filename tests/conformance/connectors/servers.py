"""Two small servers that answer exactly what a test tells them: one speaks HTTP, one SMTP."""

import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import Self


@dataclass
class Taken:
    """One request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, connection: type[socketserver.StreamRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), connection)
        self.port: int = self.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _HttpConnection(socketserver.StreamRequestHandler):
    server: "Scripted"

    def handle(self) -> None:
        line = self.rfile.readline().decode().strip()
        if not line:
            return
        headers = {}
        while text := self.rfile.readline().decode().strip():
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        self.server.taken.append(Taken(line, headers, body))
        for part in self.server.parts:
            self.wfile.write(part)
            time.sleep(self.server.pause_seconds)
        self.connection.shutdown(socket.SHUT_RDWR)


class Scripted(_Server):
    """Says `parts`, one after the other, to whatever comes, and hangs up."""

    def __init__(self) -> None:
        super().__init__(_HttpConnection)
        self.taken: list[Taken] = []
        self.parts: list[bytes] = []
        self.pause_seconds = 0.0
        self.url = f"http://127.0.0.1:{self.port}"

    def says(self, status: int, body: bytes = b"", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in named.items())]
        self.parts = [
            "\r\n".join([*lines, "Connection: close", f"Content-Length: {len(body)}", "", ""]).encode() + body
        ]


class _SmtpConnection(socketserver.StreamRequestHandler):
    server: "MailServer"

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            verb = line.split()[0].split(":")[0].upper()
            answer = self.server.answers.get(
                verb, {"DATA": "354 go on", "QUIT": "221 bye"}.get(verb, "250 ok")
            )
            if not answer:
                return
            self._say("250-here\r\n250 AUTH PLAIN" if verb == "EHLO" else answer)
            if verb == "DATA" and answer.startswith("354"):
                self._take()
                if not self.server.after_data:
                    return
                self._say(self.server.after_data)

    def _take(self) -> None:
        message = b""
        while (line := self.rfile.readline()) != b".\r\n":
            message += line
        self.server.taken.append(message)

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class MailServer(_Server):
    """Takes mail; `answers` by verb and `after_data` change what it says, "" hangs up."""

    def __init__(self) -> None:
        super().__init__(_SmtpConnection)
        self.taken: list[bytes] = []
        self.answers: dict[str, str] = {}
        self.after_data = "250 taken"
        self.url = f"smtp://127.0.0.1:{self.port}"
