"""A strict reader of Server-Sent Events, as the WHATWG page describes it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx


@dataclass
class Told:
    id: str
    event: str
    data: Any


@dataclass
class Stream:
    response: httpx.Response
    comments: list[str] = field(default_factory=list)
    retry: str = ""

    @cached_property
    def lines(self) -> Iterator[str]:
        return self.response.iter_lines()

    def __iter__(self) -> Iterator[Told]:
        return self

    def __next__(self) -> Told:
        fields: dict[str, str] = {}
        for line in self.lines:
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                return Told(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            elif fields:
                self.retry = fields.get("retry", self.retry)
                fields = {}
        raise StopIteration

    def take(self, count: int) -> list[Told]:
        return [next(self) for _ in range(count)]

    def beats(self, count: int) -> None:
        """Read until that many comments have come."""
        while len(self.comments) < count:
            line = next(self.lines)
            if line.startswith(":"):
                self.comments.append(line[1:].strip())


def address(url: str, run_id: str) -> str:
    return f"{url}/v1/runs/{run_id}/events"


@contextmanager
def stream(
    url: str, run_id: str, headers: dict[str, str], after: int | str | None = None
) -> Iterator[Stream]:
    sent = headers | ({} if after is None else {"Last-Event-ID": str(after)})
    with httpx.stream("GET", address(url, run_id), headers=sent, timeout=20) as response:
        assert response.status_code == 200, (response.status_code, response.read())
        yield Stream(response)


def page(url: str, run_id: str, headers: dict[str, str], **query: Any) -> httpx.Response:
    return httpx.get(
        address(url, run_id), headers=headers | {"Accept": "application/json"}, params=query, timeout=20
    )


def seqs(told: list[Told]) -> list[int]:
    assert all(str(one.data["seq"]) == one.id and one.data["type"] == one.event for one in told)
    return [one.data["seq"] for one in told]
