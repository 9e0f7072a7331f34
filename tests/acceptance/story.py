"""The story's words: start a run, follow it, decide it, look into the provider's books."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.acceptance.stack import Stack

ENDED = ("completed", "failed", "cancelled")


class Story:
    """One tenant's developer and reviewer, over HTTP against a running copy."""

    def __init__(self, stack: Stack, tenant: str = "acme") -> None:
        self.stack = stack
        self.tenant = tenant
        self.token = stack.demo["tokens"][tenant]
        self.reviewer = stack.demo["tokens"]["acme_reviewer"]

    # --- the provider and the shop, by their control door -----------------------------------------------------------
    def provider(self, path: str, body: object = None) -> Any:
        asked = urllib.request.Request(
            self.stack.demo["provider_url"] + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return json.loads(answer.read())

    def order(self, amount_minor: int) -> str:
        """A new order of this tenant that nobody else uses."""
        made = self.provider("/_orders", {"tenant": self.tenant, "count": 1, "amount_minor": amount_minor})
        return str(made[0]["id"])

    def fault(self, mode: str, **options: Any) -> None:
        self.provider("/_faults", {"mode": mode, **options})

    def refunds(self, order: str) -> list[dict[str, Any]]:
        return [refund for refund in self.provider("/_books")["refunds"] if refund["order"] == order]

    def cancellations(self, order: str) -> list[dict[str, Any]]:
        return [entry for entry in self.provider("/_books")["cancellations"] if entry["order"] == order]

    # --- our own doors ----------------------------------------------------------------------------------------------
    def start(self, text: str, key: str | None = None, **body: Any) -> str:
        status, answer = self.stack.request(
            "/v1/runs",
            self.token,
            {"agent": "support-agent", "input": text, **body},
            **{"Idempotency-Key": key or f"key-{time.monotonic_ns()}"},
        )
        assert status == 201, answer
        return str(answer["run_id"])

    def run(self, run_id: str) -> Any:
        status, answer = self.stack.request(f"/v1/runs/{run_id}", self.token)
        assert status == 200, answer
        return answer

    def until(self, run_id: str, *statuses: str, seconds: float = 40) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            run = self.run(run_id)
            if run["status"] in statuses:
                return run
            assert run["status"] not in ENDED, run
            assert time.monotonic() < deadline, (
                f"{run_id} is {run['status']} {run['blocked_on']}, not {statuses}"
            )
            time.sleep(0.1)

    def ended(self, run_id: str, seconds: float = 40) -> Any:
        return self.until(run_id, *ENDED, seconds=seconds)

    def waiting(self, run_id: str) -> Any:
        """The run once it waits for a person, and its one open approval."""
        return self.until(run_id, "waiting_for_approval")["pending_approvals"][0]

    def decide(self, approval: Any, verdict: str = "approve", **body: Any) -> tuple[int, Any]:
        asked = {
            "approval_id": approval["approval_id"],
            "proposal_digest": approval["proposal_digest"],
            **body,
        }
        return self.stack.request(f"/v1/runs/{approval['run_id']}/approvals/{verdict}", self.reviewer, asked)

    def cancel(self, run_id: str, reason: str = "The customer changed their mind.") -> tuple[int, Any]:
        return self.stack.request(f"/v1/runs/{run_id}/cancel", self.token, {"reason": reason})

    def stream(self, run_id: str, after: int = 0, at_most: int = 10_000) -> list[dict[str, Any]]:
        """Events from the stream, cut after `at_most` of them or read to its end."""
        return list(self._frames(run_id, after, at_most))

    def _frames(self, run_id: str, after: int, at_most: int) -> Iterator[dict[str, Any]]:
        asked = urllib.request.Request(
            f"{self.stack.url}/v1/runs/{run_id}/events",
            headers={"Authorization": f"Bearer {self.token}", "Last-Event-ID": str(after)},
        )
        with urllib.request.urlopen(asked, timeout=40) as answer:
            if answer.status == 204:
                return
            seen = 0
            for line in answer:
                if line.startswith(b"data: ") and seen < at_most:
                    frame = json.loads(line.removeprefix(b"data: "))
                    if "seq" in frame:
                        seen += 1
                        yield frame
                if seen >= at_most:
                    return
