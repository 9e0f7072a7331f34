"""One process of ours: N runs of the reference workload, started and driven to their end; prints what it took as JSON.

A support agent: four model turns (scripted, at once), three tool calls, one durable step inside the third; eight checkpoints.
"""

import json
import os
import sys
import time
from collections import Counter
from typing import Any

import django

WAIT_SECONDS = 0.2


def count_statements() -> Counter[str]:
    """Each statement that leaves this process from now on, by who sends it: one is one round trip."""
    from django.db.backends.utils import CursorWrapper
    from psycopg import AsyncConnection

    sent: Counter[str] = Counter()
    execute, execute_async = CursorWrapper.execute, AsyncConnection.execute

    def executed(self: Any, *args: Any, **more: Any) -> Any:
        sent["services"] += 1
        return execute(self, *args, **more)

    async def executed_async(self: Any, *args: Any, **more: Any) -> Any:
        sent["driver"] += 1
        return await execute_async(self, *args, **more)

    CursorWrapper.execute = executed  # type: ignore[method-assign]
    AsyncConnection.execute = executed_async  # type: ignore[method-assign]
    return sent


def make_agent() -> Any:
    from pydantic import BaseModel

    from agentops.sdk import Agent, Call, Reply, tool

    class Order(BaseModel):
        lines: list[dict[str, Any]]

    class Refund(BaseModel):
        refund: str
        amount: str

    @tool(reads=True)
    def lookup_order(ctx: Any, order_id: str) -> Order:
        """The order with all its lines."""
        return Order(
            lines=[{"line": n, "title": "Something for the desk " * 3, "cents": 4_990} for n in range(12)]
        )

    @tool(reads=True)
    def check_refund_policy(ctx: Any, order_id: str) -> Order:
        """What may be refunded."""
        return Order(
            lines=[{"eligible": True, "text": "Damaged on arrival: refunded in full within thirty days."}]
        )

    @tool(repeatable=True)
    def issue_refund(ctx: Any, order_id: str, amount: str) -> Refund:
        """Refund it; the effect is one durable step."""
        made = ctx.step(
            "refund", lambda step, *asked: {"refund": f"re_{asked[0]}", "amount": asked[1]}, order_id, amount
        )
        return Refund(**made)

    calls = [("lookup_order", {}), ("check_refund_policy", {}), ("issue_refund", {"amount": "129.90"})]

    def script(conversation: Any) -> Reply:
        done = sum(message.role == "tool" for message in conversation)
        if done == len(calls):
            return Reply(
                "Your refund of 129.90 EUR has been issued. It takes three to five business days. " * 3
            )
        name, more = calls[done]
        return Reply(
            "Let me look into that for you, one moment please. " * 2,
            (Call(name, {"order_id": "A-1042"} | more),),
        )

    return Agent(
        "reference",
        instructions="Help.",
        tools=[lookup_order, check_refund_policy, issue_refund],
        offline=script,
    )


def main(number: int) -> None:
    django.setup()
    from django.db import connection, transaction

    from agentops import llm
    from agentops.engine.driver import Driver
    from agentops.tenancy import principals
    from agentops.tenancy.access import create_tenant
    from runs.models import AgentRun
    from runs.services import Start, start_run

    connection.settings_dict["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 12}  # as in a worker
    agent = make_agent()
    tenant = create_tenant(f"bench-{os.getpid()}", "Bench")
    _, token = principals.issue(tenant, "bench", principals.SCOPES)
    principal = principals.authenticate(token, "rest")
    assert principal is not None
    llm.warm_up("offline")

    def start() -> None:
        with transaction.atomic():
            start_run(principal, agent, Start(input="My order arrived damaged."), trace_id="0" * 32)

    def left() -> int:
        return AgentRun.objects.filter(tenant=tenant, finished_at=None).count()

    start()
    driver = Driver(owner=f"bench-{os.getpid()}").start()
    while left():  # what is loaded once is not measured
        time.sleep(WAIT_SECONDS)
    driver.stop(2)
    sent, cpu, began = count_statements(), time.process_time(), time.monotonic()
    for _ in range(number):
        start()
    started = time.monotonic()
    driver = Driver(owner=f"bench-{os.getpid()}").start()
    while left():
        time.sleep(WAIT_SECONDS)
    ended = time.monotonic()
    driver.stop(2)
    wrong = AgentRun.objects.filter(tenant=tenant).exclude(status="completed").count()
    connection.close()
    figures = {
        "runs": number,
        "wrong": wrong,
        "seconds": ended - began,
        "drain_seconds": ended - started,
        "cpu_seconds": time.process_time() - cpu,
        "statements": sum(sent.values()),
        "driver_statements": sent["driver"],
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
