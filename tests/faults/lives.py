"""A worker that lives many lives: each is forked from this process, drives, and dies at the very moment it is told.

A moment is the instant before a commit that writes, before a request that asks for an effect, before its answer is read,
when it is in memory, or when its outcome is stored: what lies between two of them is forgotten by whoever dies there, so
these are all the ways to die that differ. Death is SIGKILL: no lease is handed back, no thread ends its work, no connection
is closed in order. Reads one order a line from standard input (`{runs, until, die_at, mail}`, `die_at` null to live on),
answers one line each (`{code, moments, turns}`). With `freeze` it does not die but stands still (SIGSTOP), as on a machine
that swaps or sleeps, until a `{wake}` with its number; `within` says how soon after its attempt a request must leave.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import django

DIED = -signal.SIGKILL
WRITES = ("INSERT", "UPDATE", "DELETE")


class Moments:
    """Counts what could be the last thing this life does."""

    def __init__(self, die_at: int | None, told: int, *, freeze: bool = False) -> None:
        self.die_at = die_at
        self.freeze = freeze
        self.passed: list[str] = []
        self.turns = 0
        self._told: int | None = told
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.passed.append(name)
            if len(self.passed) == self.die_at:
                self.tell()
                # To this thread, so that it does not run on until another one takes the signal for the process.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if self.freeze else signal.SIGKILL)

    def tell(self) -> None:
        if self._told is not None:
            os.write(self._told, json.dumps({"moments": self.passed, "turns": self.turns}).encode())
            os.close(self._told)
            self._told = None


def watch(moment: Moments) -> None:
    """Let every commit and every request of this process pass through `moment`."""
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper
    from psycopg import AsyncConnection
    from psycopg.pq import TransactionStatus
    from psycopg.transaction import AsyncTransaction

    from agentops import llm
    from operations import dispatch
    from operations.connectors import wire
    from operations.connectors.registry import CONNECTORS
    from runs import leases

    commit, execute = BaseDatabaseWrapper._commit, CursorWrapper.execute
    execute_async, leave = AsyncConnection.execute, AsyncTransaction.__aexit__
    turn, read, take = llm.turn, wire._body, dispatch.take
    wrote: set[int] = set()
    sender = threading.local()
    every_while = (leases.RENEW, leases.HAVE_NEEDED)  # asked however a run stands, and mostly of no row

    def committed(self: Any) -> Any:
        moment("an outcome's commit" if getattr(sender, "has_answer", False) else "a commit")
        commit(self)

    def executed(self: Any, sql: Any, params: Any = None) -> Any:
        alone = not self.db.in_atomic_block and str(sql).lstrip().startswith(WRITES)
        if alone:
            moment("a write")
        return execute(self, sql, params)

    async def executed_async(self: Any, query: Any, *args: Any, **more: Any) -> Any:
        writes = any(word in query for word in ("INSERT INTO", "UPDATE runs")) and query not in every_while
        alone = writes and self.info.transaction_status == TransactionStatus.IDLE
        if alone:
            moment("a checkpoint")
        elif writes:
            wrote.add(id(self))
        return await execute_async(self, query, *args, **more)

    async def left(self: Any, *args: Any) -> Any:
        writes = id(self.connection) in wrote
        wrote.discard(id(self.connection))
        if writes:
            moment("a claim")
        return await leave(self, *args)

    async def turned(*args: Any, **more: Any) -> Any:
        moment.turns += 1
        return await turn(*args, **more)

    def sending(send: Any) -> Any:
        def sent(*args: Any) -> Any:
            moment("a request")
            sender.waits = True
            try:
                answer = send(*args)
            finally:
                sender.waits = False
            sender.has_answer = True
            moment("an answer in memory")
            return answer

        return sent

    def answered(*args: Any) -> Any:
        if getattr(sender, "waits", False):
            moment("an answer")
        return read(*args)

    def taken(*args: Any) -> Any:
        outcome = take(*args)
        sender.has_answer = False
        moment("an outcome")
        return outcome

    BaseDatabaseWrapper._commit = committed
    CursorWrapper.execute = executed
    AsyncConnection.execute = executed_async
    AsyncTransaction.__aexit__ = left
    llm.turn, wire._body, dispatch.take = turned, answered, taken
    for connector in CONNECTORS.values():
        connector.send = sending(connector.send)


def drive(order: dict[str, Any]) -> Any:
    """Drive until the named runs have ended, or (until "asked") wait for a person; returns the driver, still at work."""
    import psycopg
    from django.conf import settings
    from django.db import connection

    from agentops.engine import agent_loop, driver
    from operations import dispatch

    driver.POLL_SECONDS = driver.HOUSE_SECONDS = 0.05
    agent_loop.DELTA_SECONDS = 60.0  # a slow machine would write more of them, at moments of its own
    dispatch.SEND_WITHIN_SECONDS = order.get("within") or dispatch.SEND_WITHIN_SECONDS
    settings.AGENTOPS_MAIL_DIR = Path(order["mail"])
    params = connection.get_connection_params()
    wanted = {
        name: params[name] for name in ("dbname", "user", "password", "host", "port") if params.get(name)
    }
    started = driver.Driver(owner=f"life-{os.getpid()}").start()
    ended = "status IN ('completed', 'failed', 'cancelled')"
    if order["until"] == "asked":
        ended += " OR status = 'waiting_for_approval'"
    left = f"SELECT count(*) FROM runs_agentrun WHERE id = ANY(%s::uuid[]) AND NOT ({ended})"
    with psycopg.connect(**wanted, autocommit=True) as look:
        while look.execute(left, [order["runs"]]).fetchone() != (0,):
            time.sleep(0.01)
    return started


def live(order: dict[str, Any]) -> dict[str, Any]:
    """One life in a process of its own."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        try:
            pool_connections()  # this process's own: what was forked with it has no threads here
            moment = Moments(order["die_at"], told, freeze=order.get("freeze", False))
            watch(moment)
            driver = drive(order)
            while moment.freeze and driver.live:  # what it was at when it stood still, it tries to end
                time.sleep(0.01)
            for thread in threading.enumerate():
                if moment.freeze and thread.name.startswith("tool "):
                    thread.join(10)
            moment.tell()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(told)
    with os.fdopen(heard) as words:
        said = words.read()
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"code": None, "pid": child, **json.loads(said)}
    return {"code": os.waitstatus_to_exitcode(status), **json.loads(said or "{}")}


def wake(child: int) -> dict[str, Any]:
    """A life that stood still goes on to its own end."""
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status)}


def pool_connections() -> None:
    """As every worker has them; else each look begins with a connection."""
    from django.db import connection

    connection.settings_dict["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 12, "timeout": 10}


def warm_up(order: dict[str, Any]) -> dict[str, Any]:
    """Live here, and leave nothing open: what is loaded and cached now, later lives have from their first moment on."""
    from django.db import connections

    drive(order).stop(2)
    connections.close_all()
    return {"code": 0}


def employ(off_seconds: float) -> dict[str, Any]:
    """A whole Celery worker, which lives until somebody kills it; its own clock is `off_seconds` ahead."""
    child = os.fork()
    if child == 0:
        from django.conf import settings

        from agentops.celery import app

        real = time.time
        time.time = lambda: real() + off_seconds
        settings.AGENTOPS_WORKER_TOKEN = f"worker-{os.getpid()}"
        os.dup2(2, 1)  # what it prints is no answer of ours
        options = ["-P", "threads", "-c", "2", "--without-gossip", "--without-mingle", "-l", "warning"]
        app.worker_main(["worker", *options])
        os._exit(0)
    return {"pid": child}


def main() -> None:
    django.setup()
    from agentops import llm

    llm.warm_up("offline")
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        match order:
            case {"celery": True}:
                said = employ(order["off_seconds"])
            case {"wake": child}:
                said = wake(child)
            case {"die_at": "never"}:
                said = warm_up(order)
            case _:
                said = live(order)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
