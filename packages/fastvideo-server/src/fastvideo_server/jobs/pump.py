"""Moves jobs from the queue into the engine, in fair turn, and tells when each has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fastvideo_core.runtime.engine import Engine, RequestHandle
from fastvideo_server.jobs.fair import FairQueue
from fastvideo_server.jobs.live import LiveJob
from fastvideo_server.jobs.weights import ResidentWeights

__all__ = ["Pump"]

_LOG = logging.getLogger(__name__)
_BEAT_S = 1.0
_RANKS = {"interactive": 0, "standard": 1, "batch": 2}


class Pump:
    """Runs on the server's event loop. What is in the engine at a time is as much as that runs; the rest waits here.

    Args:
        engine: The engine.
        max_running: Most jobs in the engine.
        on_end: Called with a job that has ended in the engine, or that it has refused with an error.

    Attributes:
        is_held: Whether no further job is begun.
    """

    def __init__(
        self, engine: Engine, max_running: int, on_end: Callable[[LiveJob, Exception | None], Awaitable[None]]
    ) -> None:
        self.is_held = False
        self._engine = engine
        self._max_running = max_running
        self._on_end = on_end
        self._queue: FairQueue[LiveJob] = FairQueue()
        self._running: set[LiveJob] = set()
        self._weights = ResidentWeights(engine)
        self._next: LiveJob | None = None
        self._wake = asyncio.Event()
        self._beat_at = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._main = asyncio.get_running_loop().create_task(self._work(), name="pump")

    async def stop(self) -> None:
        """Begin no further job, and wait until what the engine has given back is settled."""
        self.is_held = True
        if self._main is not None:
            self._main.cancel()
            with suppress(asyncio.CancelledError):
                await self._main
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def sizes(self) -> tuple[int, int]:
        """Jobs that wait, and those that the engine has."""
        return len(self._queue) + (self._next is not None), len(self._running)

    @property
    def silence_s(self) -> float:
        """Seconds since it last did anything; above a few it is stuck."""
        is_dead = self._main is not None and self._main.done()
        return float("inf") if is_dead else time.monotonic() - self._beat_at

    @property
    def running(self) -> tuple[LiveJob, ...]:
        """What the engine has."""
        return tuple(self._running)

    def put(self, job: LiveJob) -> None:
        """Let a job wait for its turn."""
        rank = _RANKS.get(job.record.latency_class, 1)
        self._queue.put(job, owner=job.caller.name, weight=job.caller.weight, rank=rank)
        self._wake.set()

    def cancel(self, job: LiveJob, reason: str) -> bool:
        """Cancel a job.

        Returns:
            Whether it was still waiting here, so that the engine will not tell of its end.
        """
        if job.handle is not None:
            job.handle.cancel(reason)
            return False
        if self._next is job:
            self._next = None
            return True
        return self._queue.remove(job)

    async def _work(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await self._release()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _BEAT_S)
            self._wake.clear()

    async def _release(self) -> None:
        while not self.is_held and len(self._running) < self._max_running:
            job = self._next = self._next or self._queue.take()
            if job is None or not self._may_run(job):
                return
            self._next = None
            self._running.add(job)
            await self._submit(job)

    def _may_run(self, job: LiveJob) -> bool:
        """Whether a job's weights are there, or can be: those that run on others end first."""
        return not self._running or self._weights.has(job.weights)

    async def _submit(self, job: LiveJob) -> None:
        loop = asyncio.get_running_loop()
        try:
            handle = await asyncio.to_thread(self._hand_over, job)
        except Exception as error:  # noqa: BLE001 - one job's error, of whatever kind, ends that job alone
            job.handle = None  # of a request that the engine has not accepted
            self._spawn(self._end(job, error))
            return
        if job.is_followed:
            handle.stream.listen(_Bell(loop, job.look).ring)
            job.look()
        self._spawn(self._wait(job))

    def _hand_over(self, job: LiveJob) -> RequestHandle:
        """Give a job to the engine, on a thread of its own; who cancels it meanwhile sees the handle, or is seen."""

        def take(handle: RequestHandle) -> None:
            job.handle = handle
            if job.cancelled_at_s is not None:
                handle.cancel("cancelled while it began")

        if not self._weights.has(job.weights):
            self._weights.switch(job.weights)
        return self._engine.submit_saved(job.saved, on_handle=take)

    async def _wait(self, job: LiveJob) -> None:
        assert job.handle is not None
        try:
            job.result = await job.handle
        except Exception as error:  # noqa: BLE001 - the job's own error, of whatever kind
            await self._end(job, error)
        else:
            await self._end(job, None)

    async def _end(self, job: LiveJob, error: Exception | None) -> None:
        self._running.discard(job)
        self._wake.set()
        if job.is_followed:
            job.look()
        try:
            await self._on_end(job, error)
        except Exception as failure:  # noqa: BLE001 - whatever it was, others go on
            _LOG.exception("job %s could not be settled", job.job_id)
            job.close(failure)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Bell:
    """Calls a function on an event loop, once for any number of rings before it gets there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self._is_rung = False

    def ring(self) -> None:
        """Ring, on any thread."""
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # the loop is closed, so nobody listens
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._is_rung = False
        self._function()
