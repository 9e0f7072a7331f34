"""The only driver of runs: one per worker process, many runs on one event loop, PostgreSQL knows what is ready."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from psycopg.errors import CheckViolation
from pydantic import ValidationError

from agentops.audit.entries import SYSTEM
from agentops.kernel.ids import show
from agentops.kernel.redaction import mask_text, printable
from agentops.telemetry.logs import bound_contextvars, logger
from agentops.telemetry.metrics import CANCEL_SECONDS
from operations.reconcile import waiting_for_another_release
from runs.events import Event
from runs.hints import Hints
from runs.services import wake
from runs.wakeups import CONTROL_GROUP

from . import aftermath, agent_loop, control, inbox, loading
from .agent_loop import RunFailed
from .claims import Unread, soon
from .errands import Errands
from .ledger import Ending, RunLedger
from .live import LIFE_LOST, Leased, LeaseLost, LiveRun, Waiting
from .statements import pool_of
from .stepper import AskModel, End, Park, RunTools, advance
from .threads import ToolThreads

log = logger(__name__)

RUNNABLE = 16  # runs of this process that use the processor at once; others are inside a model call
POLL_SECONDS = 1.0
HOUSE_SECONDS = 1.0
CRASH_LIMIT = 5
BETWEEN_SECONDS = 60.0  # a run that hangs between two steps is not kept alive for longer
SLEEPER_POLL_SECONDS = 60.0
STOP_PATIENCE_SECONDS = 10.0
CONNECT_SECONDS = 8.0  # a worker that was told to stop while it starts must not outwait its supervisor
HAND_BACK_SECONDS = 2.0  # what a lease that runs out by itself is worth waiting for PostgreSQL
CLAIM_SECONDS = 2.0  # a bell waits no longer for the claim that it causes
ABANDONED_LIMIT = 16  # threads that overran and are still at work: more, and the process ends
AFTER_LOSS_SECONDS = 2.0  # before a run is tried again whose life PostgreSQL has ended


class Driver:
    """`start` it once in a process; `ring`, `drain` and `stop` may be called from any thread, `drain` from a signal."""

    def __init__(
        self,
        *,
        pool: str = "default",
        owner: str | None = None,
        worn_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool_name = pool
        self.owner = owner or settings.AGENTOPS_WORKER_TOKEN
        self.live: dict[UUID, LiveRun] = {}
        self.draining = False
        self._worn_out = worn_out  # called once, when this process should end and another begin
        self._callers: list[concurrent.futures.Future[int]] = []
        self._patience = STOP_PATIENCE_SECONDS
        self._told_busy = False
        self.errands = Errands(self.owner)
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    # --- from other threads -----------------------------------------------------------------------------------------
    def start(self) -> "Driver":
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="driver", daemon=True)
        self._thread.start()
        if not self._ready.wait(CONNECT_SECONDS + 2):
            raise RuntimeError(
                f"The driver did not reach PostgreSQL within {CONNECT_SECONDS:.0f} seconds; is DATABASE_URL right?"
            )
        return self

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nothing to wake
            self._loop.call_soon_threadsafe(self._wake.set)

    def claim_now(self) -> int:
        """Ring, wait for the claim that it causes, and return that claim's size; 0 where there is none to wait for."""
        claimed: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._callers.append(claimed)
        self.ring()
        with suppress(TimeoutError):
            return claimed.result(CLAIM_SECONDS)
        return 0

    def look_now(self) -> int:
        """Look for due operations at once, and return how many that look has begun with; 0 where there is no look."""
        looked = self.errands.asked()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._due.set)
        with suppress(TimeoutError):
            return looked.result(CLAIM_SECONDS)
        return 0

    def drain(self) -> None:
        """Take nothing new; runs hand their leases back at the next checkpoint."""
        self.draining = True
        if self._ready.is_set():
            self.ring()

    def stop(self, patience_seconds: float = STOP_PATIENCE_SECONDS) -> None:
        """Drain, wait for what is being done, cancel the rest, hand every lease back, close the pool."""
        self._patience = patience_seconds
        self.drain()
        if self._thread is not None:
            self._thread.join(patience_seconds + 5)

    # --- on the loop ------------------------------------------------------------------------------------------------
    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._look = asyncio.Event()
        self._due = asyncio.Event()
        self.threads = ToolThreads(settings.AGENTOPS_TOOL_THREADS)
        self.operation_threads = self.errands.threads = ToolThreads(settings.AGENTOPS_TOOL_THREADS)
        pool = pool_of(settings.AGENTOPS_DRIVER_CONNECTIONS)
        await pool.open(wait=True, timeout=CONNECT_SECONDS)
        self.ledger = RunLedger(pool, self.owner)
        self._ready.set()
        hints = Hints()
        hints.watch(CONTROL_GROUP, self._look.set)
        works = (self._house, self._outside, self._wear, self._take_up, hints.run)
        keepers = [asyncio.create_task(self._forever(work)) for work in works]
        log.info("driver_started", pool=self.pool_name)
        try:
            await self._pump()
            await self._leave()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await pool.close(timeout=2)
            log.info("driver_stopped")

    async def _pump(self) -> None:
        while not self.draining:
            self._wake.clear()
            callers, self._callers = self._callers, []
            try:
                size, contended = await self._claim()
            except Exception as error:  # PostgreSQL away: look again at the next poll
                log.warning("claim_failed", error=type(error).__name__)
                size, contended = 0, False
            for caller in callers:
                caller.set_result(size)
            if size:
                continue
            if contended:
                await asyncio.sleep(soon())
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)

    async def _claim(self) -> tuple[int, bool]:
        """Take what there is room for; how many that were, and whether another process was just claiming the rest."""
        in_model = sum(run.in_model for run in self.live.values())
        want = min(RUNNABLE - (len(self.live) - in_model), settings.AGENTOPS_DRIVER_CAP - len(self.live))
        if want <= 0:
            return 0, False
        claimed = await self.ledger.claim(self.pool_name, want)
        for run in claimed.runs:
            self.live[run.id] = run
            run.task = asyncio.create_task(self._drive(run))
        for stranger in claimed.strangers:
            await self._park_for_release(stranger, [f"agent:{stranger.agent}"])
        for unread in claimed.unread:
            if unread.crash_count > CRASH_LIMIT:
                await self._fail(
                    unread, "worker_crash_loop", "No worker can read it. See the log for the reason."
                )
            else:
                await self._hand_back([unread], crashes=1, pause_seconds=AFTER_LOSS_SECONDS)
        taken = len(claimed.runs) + len(claimed.strangers)
        return taken, claimed.contended and await self.ledger.waiting(self.pool_name)

    async def _park_for_release(self, run: Leased, needs: Sequence[str]) -> bool:
        """Nobody here can carry it on: it waits for a worker that can, or for a person who retries, moves or ends it."""
        detail = f"No worker of the present release has {loading.in_words(needs)}."[:500]
        log.warning("release_missing", run_id=run.public_id, needs=list(needs))
        return await self.ledger.park(
            run, frozenset({"release"}), None, needs=needs, code="release", detail=detail
        )

    async def _drive(self, run: LiveRun) -> None:
        with bound_contextvars(run_id=run.public_id, tenant=run.tenant, trace_id=run.trace_id):
            try:
                if run.crash_count > CRASH_LIMIT:
                    raise RunFailed(
                        "worker_crash_loop",
                        f"{CRASH_LIMIT} workers ended while they held it. Start it again.",
                    )
                await self._advance(run)
            except LeaseLost:
                await self._note_loss(run)
            except LIFE_LOST as error:
                log.warning("life_lost", epoch=run.epoch, error=type(error).__name__)
                await self._hand_back([run], crashes=1, pause_seconds=AFTER_LOSS_SECONDS)
            except RunFailed as failed:
                await self._fail(run, failed.code, failed.detail)
            except asyncio.CancelledError:
                await asyncio.shield(self._hand_back([run]))
            except Exception as error:
                log.exception("agent_loop_failed")
                await self._fail(run, "agent_error", told(error))
            finally:
                run.signal.set()
                if self.live.get(run.id) is run:  # else this process has it again, in a later life
                    del self.live[run.id]
                self._wake.set()
            if run.concurrency_key:
                with suppress(Exception):  # else the next one comes when this lease would have ended
                    await self.ledger.leave_key(run)
                    self._wake.set()
            if run.ended and run.aftermath:
                await self._tell_end(run)

    async def _advance(self, run: LiveRun) -> None:
        while True:
            run.busy_until = time.monotonic() + BETWEEN_SECONDS
            if self.draining or run.paused:
                return await self._hand_back([run])
            if run.missing:
                await self._park_for_release(run, run.missing)
                return None
            await inbox.take(run, self.ledger)
            action = advance(run.journal())
            match action:
                case AskModel():
                    try:
                        await _unwrapped(
                            agent_loop.ask_model(run, action, self.ledger, self.operation_threads)
                        )
                    except Waiting as waiting:
                        if not run.paused:
                            run.wake_within(waiting.until)
                            if await self._park(run, Park(waiting.kinds)):
                                return None
                case RunTools(calls):
                    await _unwrapped(agent_loop.run_tools(run, calls, self.ledger, self.threads))
                case Park():
                    if await self._park(run, action):
                        return None
                case End(text, code, detail):
                    if code:
                        raise RunFailed(code, detail)
                    if await self._complete(run, text):
                        return None

    async def _park(self, run: LiveRun, park: Park) -> bool:
        parked = await self.ledger.park(run, park.kinds, run.due_in(), code=park.code, detail=park.detail)
        if not parked:  # something moved while the calls were made: ask them again
            run.waits.clear()
            run.timer = None
        return parked

    async def _complete(self, run: LiveRun, text: str) -> bool:
        """The run's end, or its parking where an effect of it is still open; False where neither could be."""
        ending = Ending("completed", {"text": text})
        try:
            await self.ledger.checkpoint(run, events=[Event("run.completed", {})], ending=ending)
        except CheckViolation as error:
            if error.diag.constraint_name != "run_ends_without_open_effects":
                raise
            return await self.ledger.park(run, frozenset({"operation"}), None, answered=True)
        run.ended = True
        return True

    async def _fail(self, run: LiveRun | Unread, code: str, detail: str) -> None:
        detail = mask_text(printable(detail, 400))
        await self._in_thread(
            lambda: control.fail_run(
                run.tenant_id,
                run.id,
                code=code,
                detail=detail,
                actor=SYSTEM,
                owner=run.owner,
                epoch=run.epoch,
            )
        )
        if isinstance(run, LiveRun):
            run.ended = True

    async def _tell_end(self, run: LiveRun) -> None:
        with suppress(*LIFE_LOST):  # else the next look of any driver finds it
            await self._in_thread(lambda: aftermath.tell(run.id))

    async def _note_loss(self, run: LiveRun) -> None:
        """A lease ends under a worker because the run is ended, or because the worker was too slow: only that is news."""
        with suppress(Exception):
            if not await self.ledger.is_ending(run):
                log.warning("stale_worker", run_id=run.public_id, epoch=run.epoch, worker=self.owner[:8])

    async def _hand_back(
        self, runs: Sequence[LiveRun | Unread], *, crashes: int = 0, pause_seconds: float = 0.0
    ) -> None:
        with suppress(Exception):  # else the leases run out
            async with asyncio.timeout(HAND_BACK_SECONDS):
                await self.ledger.hand_back(runs, crashes=crashes, pause_seconds=pause_seconds)

    # --- once a second, and at a hint ---------------------------------------------------------------------------------
    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                log.warning("housekeeping_failed", work=work.__name__, error=type(error).__name__)
            # What people do to a run is noticed at once, and what they allow is sent at once; the others wait for their time.
            hint = {self._house: self._look, self._outside: self._due}.get(work, asyncio.Event())
            with suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), HOUSE_SECONDS)
            hint.clear()

    async def _house(self) -> None:
        """Stop what is no longer ours (cancelled, ended, taken over), tell paused runs to begin nothing, renew the rest."""
        await self._tell_busy()
        runs = list(self.live.values())
        if not runs:
            return
        mine = await self.ledger.still_mine()
        lost = [run for run in runs if mine.get(run.id, (-1, False))[0] != run.epoch and run.id in self.live]
        for run in lost:
            run.signal.set()
            if run.task is not None:
                run.task.cancel()
                await self._note_loss(run)
        for run in runs:
            run.paused = run.paused or mine.get(run.id, (-1, False))[1]
        if lost:
            for run_id, seconds in (await self.ledger.cancelled_ago([run.id for run in lost])).items():
                CANCEL_SECONDS.observe(seconds)
                log.info("cancel_reached", run_id=show("run", run_id), seconds=round(seconds, 3))
        await self.ledger.renew([run for run in runs if run.id in mine])

    async def _wear(self) -> None:
        """Threads that overran and never end: their process ends in order, and another begins."""
        abandoned = self.threads.abandoned() + self.operation_threads.abandoned()
        if abandoned > ABANDONED_LIMIT and not self.draining:
            log.error("too_many_abandoned_threads", threads=abandoned)
            self.drain()
            self._worn_out()

    async def _tell_busy(self) -> None:
        """Which tool threads still work for nobody: shown with their run until they end."""
        busy = self.threads.left_behind()
        if busy or self._told_busy:
            await self.ledger.still_busy(busy)
            self._told_busy = bool(busy)

    async def _take_up(self) -> None:
        """Runs that were parked for what this release has go on here; those that wait for what no release has say so."""
        if not self.draining and await self.ledger.have_needed(self.pool_name):
            self._wake.set()
        for run_id in await self._in_thread(waiting_for_another_release):
            try:
                await self._in_thread(partial(wake, run_id, "operation", {}))
            except Exception:  # one whose key does not open must not hold up the others
                log.exception("run_not_woken", run_id=show("run", run_id))

    async def _outside(self) -> None:
        if not self.draining:
            await self.errands.look()

    async def _in_thread[T](self, work: Callable[[], T]) -> T:
        return await self.operation_threads.run(work, name="service")

    # --- the end ----------------------------------------------------------------------------------------------------
    async def _leave(self) -> None:
        """Present checkpoints end, leases go back; model calls and requests under way get the patience."""
        until = time.monotonic() + self._patience
        while (self.live or self.errands.under_way) and time.monotonic() < until:
            await asyncio.sleep(0.05)
            for run in list(self.live.values()):
                if run.in_model and run.task is not None and time.monotonic() > until - 0.2:
                    run.task.cancel()
        tasks = [run.task for run in self.live.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3)
        await self._hand_back(list(self.live.values()))


def told(error: Exception) -> str:
    """An error of ours in one masked line; a validator's words quote what they refuse, so only its class is told."""
    words = "" if isinstance(error, ValidationError) else mask_text(str(error).partition("\n")[0])
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


async def _unwrapped(work: Coroutine[Any, Any, None]) -> None:
    """The first error of a group of calls, as itself."""
    try:
        await work
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


_current: Driver | None = None


def install(driver: Driver | None) -> Driver | None:
    """Make `driver` the one that this process's doorbell wakes."""
    global _current
    _current = driver
    return driver


def current() -> Driver | None:
    return _current
