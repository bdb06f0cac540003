"""Runs jobs on one engine, all at once as far as it lets them, and hands each back when it ends."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import Job
from fastvideo_core.cli.progress import Display, Tally
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import FastVideoError

if TYPE_CHECKING:
    from fastvideo_core.request.media.publish import SavedFiles
    from fastvideo_core.runtime.engine import Engine, RequestHandle
    from fastvideo_core.runtime.host import HostSide
    from fastvideo_core.runtime.run import GenerationResult

__all__ = ["Ended", "EngineOptions", "run_jobs", "save_result"]

_ENDS = ("request.completed", "request.failed", "request.cancelled")
_INTERRUPT = object()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the model is loaded.

    Attributes:
        device: Device, or "auto".
        precision: Number format; None takes the card's.
        max_running: Most requests in progress at a time.
    """

    device: str = "auto"
    precision: str | None = None
    max_running: int = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended: with a result, or with the reason why there is none."""

    job: Job
    result: GenerationResult | None
    error: Exception | None


def run_jobs(jobs: Sequence[Job], options: EngineOptions, display: Display, shell: Shell) -> Iterator[Ended]:
    """Load the jobs' card, run them, and yield each as it ends; an interrupt cancels all that still run.

    What the card's tokenizers tell is looked at first: jobs that its loops refuse end at once, and without another job
    no weights are loaded.

    An engine that a second interrupt leaves behind is not closed: that would wait for the step in progress.

    Raises:
        CheckpointError: Weights are missing or broken.
        ResourceError: They do not fit.
    """
    if not jobs:
        return
    with _without_collector(shell):
        host, refused = _check_jobs(jobs, options, display, shell)
    yield from refused
    refused_ids = {ended.job.request_id for ended in refused}
    accepted = [job for job in jobs if job.request_id not in refused_ids]
    if not accepted:
        return
    with _without_collector(shell):
        engine = _open_engine(accepted, options, display, host)
    try:
        yield from _run_on(engine, accepted, display, shell)
    finally:
        if not shell.is_impatient:
            engine.close()


def save_result(ended: Ended) -> SavedFiles:
    """Write the result of a job, whole or not at all.

    Raises:
        Exception: Why the job has no result.
        OutputError: It cannot be written.
        ResourceError: The disk is full.
    """
    if ended.result is None:
        assert ended.error is not None
        raise ended.error
    artifact: Any = ended.result.artifacts[ended.job.artifact]
    saved: SavedFiles = artifact.save(ended.job.target)
    return saved


def _check_jobs(
    jobs: Sequence[Job], options: EngineOptions, display: Display, shell: Shell
) -> tuple[HostSide, list[Ended]]:
    """Load what needs no weights, tell what it warns of, and return it with the jobs that are refused by it."""
    card = jobs[0].prepared.card
    display.phase(f"loading {card.model_id}")
    from fastvideo_core.runtime.host import load_host

    host = load_host(card, tasks=_tasks(jobs), device=options.device, precision=options.precision)
    refused, warnings = [], list[str]()
    for job in jobs:
        try:
            warnings += host.check(job.prepared)
        except FastVideoError as error:
            refused.append(Ended(job, None, error))
    for warning in dict.fromkeys(warnings):
        shell.tell(f"warning: {warning}")
    return host, refused


def _tasks(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job.prepared.request.task for job in jobs))


def _open_engine(jobs: Sequence[Job], options: EngineOptions, display: Display, host: HostSide) -> Engine:
    """Load what the jobs' tasks need of their card, and nothing else."""
    card = jobs[0].prepared.card
    from fastvideo_core.runtime.allocator import keep_freed_memory
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_core.runtime.loading import load_instance
    from fastvideo_core.runtime.weights.text import format_bytes

    keep_freed_memory()
    instance = load_instance(
        card,
        device=options.device,
        precision=options.precision,
        tasks=_tasks(jobs),
        on_progress=display.transfer,
        on_read=lambda report: display.note(f"loaded {report.short()}"),
        loaded=host.components,
    )
    display.phase(f"loaded {format_bytes(instance.num_bytes)} of weights, {instance.precision} on {instance.device}")
    return Engine(instance, max_running=options.max_running)


@contextmanager
def _without_collector(shell: Shell) -> Iterator[None]:
    """Keep the garbage collector away from the imports: they leave no garbage, and it took a tenth of their time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if shell.owns_process:
            # What has been loaded stays to the end; there is no use in looking at it again.
            gc.freeze()
        if was_enabled:
            gc.enable()


def _run_on(engine: Engine, jobs: Sequence[Job], display: Display, shell: Shell) -> Iterator[Ended]:
    ends: SimpleQueue[Any] = SimpleQueue()
    tally = Tally(len(jobs))

    def note(event: Any) -> None:
        tally.note(event, time.monotonic())
        if event.type in _ENDS:
            ends.put(event.request_id)
        if tally.num_ended < tally.num_requests:
            display.refresh()

    # The queue may be written to in a signal handler, whatever the thread is doing.
    with shell.cancels(lambda: ends.put(_INTERRUPT)):
        display.begin(tally)
        handles = {job.request_id: (job, engine.submit_prepared(job.prepared, on_event=note)) for job in jobs}
        while handles:
            ended = ends.get()
            if ended is _INTERRUPT:
                shell.tell("cancelling at the next step boundary; Ctrl-C again ends at once")
                for _, handle in handles.values():
                    handle.cancel("interrupted")
            else:
                yield _collect(*handles.pop(ended))


def _collect(job: Job, handle: RequestHandle) -> Ended:
    try:
        return Ended(job, handle.result(), None)
    except Exception as error:  # noqa: BLE001 - one job's error, of whatever kind, ends that job alone
        return Ended(job, None, error)
