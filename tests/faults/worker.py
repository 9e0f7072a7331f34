"""This side of `lives`: start the warm worker process, tell it what to live, employ Celery workers and kill them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection

from runs.models import AgentRun
from tests.provider import Provider


@dataclass
class Lives:
    """Forked lives of one warm worker."""

    process: subprocess.Popen[str]
    log: Path
    employed: list[int] = field(default_factory=list)

    def live(
        self,
        until: str,
        mail: Path,
        runs: Sequence[AgentRun],
        die_at: int | str | None = None,
        *,
        freeze: bool = False,
        within: float | None = None,
    ) -> dict[str, Any]:
        """One life until the runs are where they should be, or until its end at moment `die_at`; "never" rehearses.

        With `freeze` it stands still at that moment; `wake` its `pid` to let it go on. What it sends must leave `within`
        seconds of its attempt.
        """
        names = [str(run.id) for run in runs]
        order = {"runs": names, "until": until, "die_at": die_at, "mail": str(mail)}
        return self._say(order | {"freeze": freeze, "within": within})

    def wake(self, pid: int) -> dict[str, Any]:
        return self._say({"wake": pid})

    def employ(self, *, off_seconds: float = 0.0) -> None:
        """One more Celery worker, on the same host; its own clock is `off_seconds` ahead."""
        self.employed.append(self._say({"celery": True, "off_seconds": off_seconds})["pid"])

    def kill(self, place: int) -> None:
        os.kill(self.employed.pop(place), signal.SIGKILL)

    def _say(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def lives(provider: Provider, log: Path, **more: str) -> Iterator[Lives]:
    wanted = connection.settings_dict
    where = f"{wanted['USER']}:{wanted['PASSWORD']}@{wanted['HOST']}:{wanted['PORT']}/{wanted['NAME']}"
    ours = {
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "DATABASE_URL": f"postgresql://{where}",
        "AGENTOPS_DEMO": "1",
        "AGENTOPS_SHOP_URL": provider.shop_url,
        "AGENTOPS_HOLD_SECONDS": "0",
        "AGENTOPS_LOG_JSON": "0",
    }
    command = [sys.executable, "-m", "tests.faults.lives"]
    with (
        log.open("w") as lines,
        subprocess.Popen(
            command,
            env=os.environ | ours | more,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=lines,
        ) as process,
    ):
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "ready\n", log.read_text()
        found = Lives(process, log)
        try:
            yield found
        finally:
            while found.employed:
                found.kill(0)
            process.stdin.close()
