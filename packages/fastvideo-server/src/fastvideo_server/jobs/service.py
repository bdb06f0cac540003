"""Takes jobs in, answers for them, and puts what came of them where it is safe."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastvideo_core.card import ModelCard
from fastvideo_core.cli.setup import Setup
from fastvideo_core.errors import CancelledError, FastVideoError, describe_failure
from fastvideo_core.request.base import new_request_id
from fastvideo_core.runtime.durable import SavedJob, StateStore
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.serving import WeightStack
from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.jobs.artifacts import ArtifactStore
from fastvideo_server.jobs.asks import Ask, length_text, size_text
from fastvideo_server.jobs.database import JobDatabase
from fastvideo_server.jobs.live import LiveJob
from fastvideo_server.jobs.preparing import Preparer
from fastvideo_server.jobs.pump import Pump
from fastvideo_server.jobs.quotas import Caller, Keys
from fastvideo_server.jobs.records import JobRecord
from fastvideo_server.jobs.recovery import plan_recovery
from fastvideo_server.metrics import Metrics
from fastvideo_server.tracing import begin_job, end_span

__all__ = ["JobService", "Shelf"]

_LOG = logging.getLogger(__name__)
_USUAL_S = 5.0
_MEMORY = 0.8


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where jobs are kept.

    Attributes:
        store: Accepted requests and their states.
        database: The table of jobs.
        artifacts: What they made.
    """

    store: StateStore
    database: JobDatabase
    artifacts: ArtifactStore


class JobService:
    """The jobs of one server, on its event loop.

    Args:
        engine: Runs them; opened with the shelf's store.
        shelf: Where they are kept.
        config: Limits.
        keys: Who may ask for how much.
        metrics: Figures.
        setup: What the deploy config says of cards.
        max_running: Most jobs in the engine at a time.

    Attributes:
        is_draining: Whether nothing more is accepted.
        preparer: Checks what is asked for.
        on_drain: Awaited when no more is accepted, beside the jobs that run to their end.
        on_end: Called with each job that has ended, and why it gave no result; on the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        shelf: Shelf,
        config: ServerConfig,
        keys: Keys,
        metrics: Metrics,
        *,
        setup: Setup | None = None,
        max_running: int = 16,
    ) -> None:
        self.engine = engine
        self.shelf = shelf
        self.config = config
        self.is_draining = False
        self.on_drain: list[Callable[[], Awaitable[None]]] = []
        self.on_end: list[Callable[[LiveJob, Exception | None], None]] = []
        self._keys = keys
        self._metrics = metrics
        self.preparer = Preparer(engine, setup or Setup(), config.max_image_pixels)
        self._max_running = max_running
        self._pump = Pump(engine, max_running, self._settle)
        self._lives: dict[str, LiveJob] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._num_coming: dict[str, int] = {}
        self._mean_s = _USUAL_S

    @property
    def card(self) -> ModelCard:
        """The card that is served."""
        return self.engine.card

    @property
    def pump(self) -> Pump:
        """What moves jobs into the engine."""
        return self._pump

    @property
    def num_unfinished(self) -> int:
        """Jobs that have not ended, those that are being accepted included."""
        return len(self._lives) + sum(self._num_coming.values())

    async def start(self) -> None:
        """Take up what an earlier process has left, and begin to work."""
        plan = await asyncio.to_thread(plan_recovery, self.shelf, self.engine.instance, self.preparer.weights_again)
        for record, saved, weights in plan:
            caller = self._keys.named(record.owner)
            job = LiveJob(record, saved, caller, weights=weights)
            self._lives[record.job_id] = job
            self._pump.put(job)
        if plan:
            _LOG.info("%d jobs of an earlier process go on", len(plan))
        self._metrics.watch(self.engine, lambda: self._pump.sizes)
        self._pump.start()

    async def drain(self) -> None:
        """Accept nothing more, let what runs end, and save what does not; it goes on with the next process."""
        self.is_draining = True
        self._pump.is_held = True
        for job in [one for one in self._lives.values() if not one.is_durable and one.handle is None]:
            if self._pump.cancel(job, "the server stops"):
                self._end(job, ApiError(503, "the server stops", code="draining", retry_after_s=5))
        running: list[asyncio.Future[Any]] = [asyncio.ensure_future(job.ended.wait()) for job in self._pump.running]
        running += [asyncio.ensure_future(work()) for work in self.on_drain]
        if running:
            _, rest = await asyncio.wait(running, timeout=self.config.drain_s)
            for task in rest:
                task.cancel()
        await asyncio.to_thread(self.engine.close)
        await self._pump.stop()
        for job in self._lives.values():
            job.leave()

    async def create(
        self, ask: Ask, caller: Caller, *, idempotency_key: str | None = None, digest: str | None = None
    ) -> LiveJob | JobRecord:
        """Accept a job; it is there for good when this returns.

        Args:
            ask: What is wanted.
            caller: Who wants it.
            idempotency_key: What tells a repetition from a second job.
            digest: Digest of all that was said, to tell a repetition from another job under the same key.

        Raises:
            ApiError: Why it is not accepted.
        """
        if idempotency_key is None:
            return await self._create(ask, caller, None, digest)
        lock = self._locks.setdefault((caller.name, idempotency_key), asyncio.Lock())
        try:
            async with lock:
                return await self._create(ask, caller, idempotency_key, digest)
        finally:
            if not lock.locked():
                self._locks.pop((caller.name, idempotency_key), None)

    async def generate(self, asks: Sequence[Ask], caller: Caller) -> list[GenerationResult]:
        """Run requests for a caller that waits; they end when it goes away.

        Raises:
            ApiError: They are not accepted, or one of them failed.
        """
        jobs = await self.begin(asks, caller, is_followed=False)
        try:
            for job in jobs:
                await job.ended.wait()
        finally:
            self.drop(jobs)
        failed = next((job.error for job in jobs if job.error is not None), None)
        if failed is not None:
            raise api_error(failed)
        return [job.result for job in jobs if job.result is not None]

    async def begin(self, asks: Sequence[Ask], caller: Caller, *, is_followed: bool = True) -> list[LiveJob]:
        """Begin requests for a caller that waits, who drops them when it does so no more.

        Args:
            asks: What is wanted.
            caller: Who wants it.
            is_followed: Whether their events are wanted while they run.

        Raises:
            ApiError: They are not accepted.
        """
        self._check_open(caller, count=len(asks))
        self._keys.spend(caller)
        with self._coming(caller, len(asks)):
            prepared = [await asyncio.to_thread(self._prepare, ask) for ask in asks]
        jobs = []
        for ask, (one, warnings, weights) in zip(asks, prepared, strict=True):
            record = self._record(ask, one, caller, warnings, weights, None, None)
            saved = _saved(one, record)
            jobs.append(LiveJob(record, saved, caller, is_durable=False, weights=weights, is_followed=is_followed))
        for job in jobs:
            self._lives[job.job_id] = job
            self._pump.put(job)
        return jobs

    def drop(self, jobs: Sequence[LiveJob], reason: str = "the client has gone") -> None:
        """Cancel what has not ended of requests that nobody waits for any more."""
        for job in jobs:
            if not job.is_final:
                self._cancel(job, reason)

    async def get(self, job_id: str, caller: Caller) -> LiveJob | JobRecord:
        """Return a job.

        Raises:
            ApiError: 404, the caller has no such job.
        """
        live = self._lives.get(job_id)
        if live is not None and live.is_durable and live.caller.name == caller.name:
            return live
        record = await asyncio.to_thread(self.shelf.database.get, job_id)
        if record is None or record.owner != caller.name or record.status in ("accepting", "deleted"):
            raise ApiError(404, f"there is no video {job_id[:100]!r}", code="not_found", param="video_id")
        return record

    async def page(
        self, caller: Caller, *, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> tuple[list[LiveJob | JobRecord], bool]:
        """Return a caller's jobs, and whether there are more; see `JobDatabase.page`.

        Raises:
            ApiError: 404, the caller has no job `after`.
        """
        if after is not None:
            await self.get(after, caller)
        records, has_more = await asyncio.to_thread(
            self.shelf.database.page, caller.name, after=after, limit=limit, order=order
        )
        return [self._lives.get(record.job_id, record) for record in records], has_more

    async def delete(self, job_id: str, caller: Caller) -> None:
        """Cancel a job if it has not ended, and remove all that there is of it.

        Raises:
            ApiError: 404, the caller has no such job.
        """
        found = await self.get(job_id, caller)
        record = found.record if isinstance(found, LiveJob) else found
        # First of all, so that a crash from here on does not bring it back.
        await asyncio.to_thread(self.shelf.database.mark_deleted, record)
        if isinstance(found, LiveJob):
            self._cancel(found, "deleted by the caller")
            await found.ended.wait()
        await asyncio.to_thread(self._discard, record)

    async def stored_events(self, job_id: str) -> list[dict[str, Any]]:
        """Return the events of a job that has ended, as they were sent."""
        text = await asyncio.to_thread(self.shelf.database.events, job_id)
        return [json.loads(line) for line in text.splitlines()]

    def _cancel(self, job: LiveJob, reason: str) -> None:
        if job.cancelled_at_s is None:
            job.cancelled_at_s = time.monotonic()
        if self._pump.cancel(job, reason):
            self._end(job, CancelledError(f"request:{job.job_id}: {reason}"))

    async def _create(self, ask: Ask, caller: Caller, key: str | None, digest: str | None) -> LiveJob | JobRecord:
        if key is not None and (earlier := await self._earlier(caller, key, digest)) is not None:
            return earlier
        self._check_open(caller)
        self._keys.spend(caller)
        with self._coming(caller):
            prepared, warnings, weights = await asyncio.to_thread(self._prepare, ask)
            record = self._record(ask, prepared, caller, warnings, weights, key, digest)
            accepted = replace(record, status="queued", run=1)
            await asyncio.to_thread(self._accept, record, accepted, prepared)
            saved = _saved(prepared, accepted)
            job = LiveJob(accepted, saved, caller, weights=weights, trace=begin_job(accepted))
            self._lives[job.job_id] = job
        self._pump.put(job)
        return job

    async def _earlier(self, caller: Caller, key: str, digest: str | None) -> LiveJob | JobRecord | None:
        record = await asyncio.to_thread(self.shelf.database.by_key, caller.name, key)
        if record is None:
            return None
        if record.body_sha256 != digest:
            raise ApiError(
                422, "this Idempotency-Key was used for another request", code="idempotency_key_reused",
                param="Idempotency-Key", allowed="a new key",
            )  # fmt: skip
        if record.status == "deleted":
            raise ApiError(
                410, "the video that this Idempotency-Key made was deleted", code="deleted", param="Idempotency-Key",
                allowed="a new key",
            )  # fmt: skip
        return self._lives.get(record.job_id, record)

    def _check_open(self, caller: Caller, *, count: int = 1) -> None:
        if self.is_draining:
            raise ApiError(503, "the server stops", code="draining", retry_after_s=5)
        own = sum(job.caller.name == caller.name for job in self._lives.values()) + self._num_coming.get(caller.name, 0)
        wait_s = max(1.0, self._mean_s * self.num_unfinished / self._max_running)
        if own + count > caller.max_queued:
            raise ApiError(
                429, f"key {caller.name} has {own} jobs that have not ended", code="quota_exceeded",
                allowed=f"{caller.max_queued}", retry_after_s=wait_s,
            )  # fmt: skip
        if self.num_unfinished + count > self.config.max_queued:
            raise ApiError(
                429, f"{self.num_unfinished} jobs have not ended", code="queue_full",
                allowed=f"{self.config.max_queued}", retry_after_s=wait_s,
            )  # fmt: skip
        free = shutil.disk_usage(self.config.folder).free
        if free < self.config.min_free:
            raise ApiError(503, "the server's disk is full", code="disk_full", retry_after_s=60)

    def _prepare(self, ask: Ask) -> tuple[PreparedRequest, tuple[str, ...], WeightStack | None]:
        prepared, warnings = self.preparer.prepare(ask, request_id=f"video_{new_request_id()}")
        return prepared, warnings, self.preparer.weights(ask)

    def _coming(self, caller: Caller, count: int = 1) -> _Coming:
        return _Coming(self._num_coming, caller.name, count)

    def _record(
        self,
        ask: Ask,
        prepared: PreparedRequest,
        caller: Caller,
        warnings: tuple[str, ...],
        weights: WeightStack | None,
        key: str | None,
        digest: str | None,
    ) -> JobRecord:
        task = self.card.task(prepared.request.task)
        return JobRecord(
            job_id=prepared.request.request_id,
            owner=caller.name,
            status="accepting",
            created_at=time.time(),
            model=self.card.model_id,
            task=ask.task,
            prompt=ask.prompt,
            size=size_text(prepared.parameters),
            seconds=length_text(task, prepared.parameters),
            parameters=prepared.parameters.to_json(),
            asked={} if ask.call is None else dict(ask.call.parameters),
            weights=None if weights is None else weights.key,
            warnings=warnings,
            latency_class=prepared.request.latency_class,
            idempotency_key=key,
            body_sha256=digest,
        )

    def _accept(self, record: JobRecord, accepted: JobRecord, prepared: PreparedRequest) -> None:
        """Promise a job: its row, its request, then the row that says so."""
        database, store = self.shelf.database, self.shelf.store
        database.insert(record)
        try:
            store.accept(prepared, self.engine.instance, note={"record": accepted.to_json()})
        except FastVideoError as error:
            database.remove(record.job_id)
            raise api_error(error) from error
        database.update(accepted)

    async def _settle(self, job: LiveJob, error: Exception | None) -> None:
        """Bring a job that the engine is done with to its end."""
        if not job.is_durable:
            self._end(job, error)
            return
        if isinstance(error, CancelledError) and job.cancelled_at_s is None:
            # Nobody cancelled it but the end of this process: it goes on in the next one.
            job.leave()
            return
        if job.cancelled_at_s is not None:
            self._end(job, error or CancelledError(f"request:{job.job_id}: deleted by the caller"))
            return
        try:
            if error is not None:
                raise error
            job.record = replace(job.record, status="completed", completed_at=time.time())
            assert job.result is not None
            await asyncio.to_thread(
                self.shelf.artifacts.save, job.job_id, job.result.video, {"record": job.record.to_json()}
            )
        except Exception as failure:  # noqa: BLE001 - whatever it was, it ends this job alone
            error = failure
            code, message = type(failure).__name__, describe_failure(failure)
            _LOG.warning("job %s failed: %s", job.job_id, message)
            job.record = replace(
                job.record, status="failed", completed_at=time.time(), error_code=code, error_message=message
            )
        job.result = None  # the frames are in the file
        await self._finish(job, error)

    async def _finish(self, job: LiveJob, error: Exception | None) -> None:
        """Make the end of a job known: first to the table, then to whoever waits."""
        job.close(error)
        lines = "".join(f"{event.model_dump_json()}\n" for event in job.events())
        try:
            await asyncio.to_thread(self.shelf.database.update, job.record, events=lines)
            await asyncio.to_thread(self.shelf.store.finish, job.job_id)
        finally:
            self._note_end(job, error)

    def _end(self, job: LiveJob, error: Exception | None) -> None:
        job.close(error)
        self._note_end(job, error)

    def _note_end(self, job: LiveJob, error: Exception | None) -> None:
        self._lives.pop(job.job_id, None)
        end_span(job.trace, error)
        for tell in self.on_end:
            tell(job, error)
        now = time.monotonic()
        status = "completed" if error is None else "cancelled" if job.cancelled_at_s is not None else "failed"
        self._metrics.jobs.labels(status).inc()
        self._metrics.job_seconds.observe(now - job.begun_at_s)
        first_s = job.first_chunk_s if job.is_followed or error is not None else now - job.begun_at_s
        if first_s is not None:  # of a call that nobody follows, all frames come with its end
            self._metrics.first_chunk_seconds.observe(first_s)
        if job.cancelled_at_s is not None:
            self._metrics.cancel_seconds.observe(now - job.cancelled_at_s)
        elif error is None:
            self._mean_s = _MEMORY * self._mean_s + (1 - _MEMORY) * (now - job.begun_at_s)

    def _discard(self, record: JobRecord) -> None:
        self.shelf.store.finish(record.job_id)
        self.shelf.artifacts.remove(record.job_id)
        if record.idempotency_key is None:
            self.shelf.database.remove(record.job_id)


class _Coming:
    """Counts jobs that are being accepted, so that many at once do not pass a limit together."""

    def __init__(self, counts: dict[str, int], name: str, count: int) -> None:
        self._counts, self._name, self._count = counts, name, count

    def __enter__(self) -> None:
        self._counts[self._name] = self._counts.get(self._name, 0) + self._count

    def __exit__(self, *_: object) -> None:
        self._counts[self._name] -= self._count
        if not self._counts[self._name]:
            del self._counts[self._name]


def _saved(prepared: PreparedRequest, record: JobRecord) -> SavedJob:
    return SavedJob(record.job_id, prepared, {}, {"record": record.to_json()})
