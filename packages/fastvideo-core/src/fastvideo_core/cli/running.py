"""Runs jobs on one engine, all at once as far as it lets them, and hands each back when it ends."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from fastvideo_core.cli.jobs import Job, beside
from fastvideo_core.cli.progress import Display, Tally
from fastvideo_core.cli.setup import Setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import FastVideoError, QueueFullError

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.request.media.publish import SavedFiles
    from fastvideo_core.runtime.durable import StateStore
    from fastvideo_core.runtime.engine import Engine, RequestHandle
    from fastvideo_core.runtime.host import HostSide
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_core.runtime.run import GenerationResult

__all__ = ["Ended", "EngineOptions", "Keeper", "run_jobs", "save_result"]

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


class Keeper(Protocol):
    """Keeps jobs where they outlive the process, and takes up those that did."""

    store: StateStore
    """Where they are kept."""

    @property
    def card(self) -> ModelCard:
        """The card of all jobs."""
        ...

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of all jobs, those of other processes included."""
        ...

    @property
    def has_saved(self) -> bool:
        """Whether there may be jobs to take up."""
        ...

    def take_up(self, instance: ModelInstance) -> list[Job]:
        """Note that the jobs are about to run on a model, and return those that another process has begun."""
        ...


def run_jobs(
    jobs: Sequence[Job],
    options: EngineOptions,
    display: Display,
    shell: Shell,
    keeper: Keeper | None = None,
    setup: Setup | None = None,
) -> Iterator[Ended]:
    """Load the jobs' card, run them, and yield each as it ends; an interrupt cancels all that still run.

    What the card's tokenizers tell is looked at first: jobs that its loops refuse end at once, and without another job
    no weights are loaded.

    An engine that a second interrupt leaves behind is not closed: that would wait for the step in progress.

    Raises:
        PluginError: A plugin that the deploy config switches on does not work with the card.
        CheckpointError: Weights are missing or broken.
        ResourceError: They do not fit.
    """
    has_saved = keeper is not None and keeper.has_saved
    if not jobs and not has_saved:
        return
    card = jobs[0].prepared.card if keeper is None else keeper.card
    tasks = _tasks(jobs) if keeper is None else keeper.tasks
    with _without_collector(shell):
        host = _load_host(card, tasks, options, display)
        refused = _check_jobs(host, jobs, shell)
    yield from refused
    refused_ids = {ended.job.request_id for ended in refused}
    accepted = [job for job in jobs if job.request_id not in refused_ids]
    if not accepted and not has_saved:
        return
    with _without_collector(shell):
        engine = _open_engine(card, tasks, options, display, host, keeper, setup or Setup())
    try:
        saved = [] if keeper is None else keeper.take_up(engine.instance)
        yield from _run_on(engine, [*saved, *accepted], display, shell)
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
    return replace(saved, paths=(*saved.paths, *_save_beside(ended, saved.path)))


def _save_beside(ended: Ended, path: Path) -> list[Path]:
    """Write what was made with the result, and return the paths."""
    assert ended.result is not None
    outputs = ended.job.prepared.card.task(ended.job.prepared.request.task).outputs
    others = {name: made for name, made in ended.result.artifacts.items() if name != ended.job.artifact}
    saved = [made.save(beside(path, name, outputs[name])) for name, made in others.items()]  # type: ignore[attr-defined]
    return [files.path for files in saved]


def _load_host(card: ModelCard, tasks: tuple[str, ...], options: EngineOptions, display: Display) -> HostSide:
    """Load what needs no weights."""
    display.phase(f"loading {card.model_id}")
    from fastvideo_core.runtime.host import load_host

    return load_host(card, tasks=tasks, device=options.device, precision=options.precision)


def _check_jobs(host: HostSide, jobs: Sequence[Job], shell: Shell) -> list[Ended]:
    """Tell what the jobs are warned of, and return those that are refused."""
    refused, warnings = [], list[str]()
    for job in jobs:
        try:
            warnings += host.check(job.prepared)
        except FastVideoError as error:
            refused.append(Ended(job, None, error))
    for warning in dict.fromkeys(warnings):
        shell.tell(f"warning: {warning}")
    return refused


def _tasks(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(job.prepared.request.task for job in jobs))


def _open_engine(
    card: ModelCard,
    tasks: tuple[str, ...],
    options: EngineOptions,
    display: Display,
    host: HostSide,
    keeper: Keeper | None,
    setup: Setup,
) -> Engine:
    """Load what some tasks need of their card, and nothing else."""
    from fastvideo_core.runtime.allocator import keep_freed_memory
    from fastvideo_core.runtime.attention import choose_attention
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_core.runtime.hooks import InstanceHooks
    from fastvideo_core.runtime.loading import load_instance
    from fastvideo_core.runtime.samplers import load_samplers
    from fastvideo_core.runtime.weights.text import format_bytes

    extensions = setup.extensions(card)
    hooks, attention = InstanceHooks.of(extensions, card), choose_attention(extensions, card)
    keep_freed_memory()
    instance = load_instance(
        card,
        device=options.device,
        precision=options.precision,
        tasks=tasks,
        on_progress=display.transfer,
        on_read=lambda report: display.note(f"loaded {report.short()}"),
        loaded=host.components,
        hooks=hooks,
        attention=attention,
        samplers=load_samplers(extensions),
    )
    display.phase(f"loaded {format_bytes(instance.num_bytes)} of weights, {instance.precision} on {instance.device}")
    return Engine(
        instance,
        options=setup.runtime_options(),
        max_running=options.max_running,
        store=None if keeper is None else keeper.store,
    )


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

    waiting = deque(jobs)
    handles: dict[str, tuple[Job, RequestHandle]] = {}
    # The queue may be written to in a signal handler, whatever the thread is doing.
    with shell.cancels(lambda: ends.put(_INTERRUPT)):
        display.begin(tally)
        while waiting or handles:
            # What has ended is looked at before the next is submitted, which may take a while where it is stored.
            is_full = False
            while waiting and ends.empty() and not is_full:
                refused = _submit_next(engine, waiting, handles, note)
                is_full = refused is None
                yield from refused or ()
            ended = ends.get() if handles else None
            if ended is _INTERRUPT:
                shell.tell("cancelling at the next step boundary; Ctrl-C again ends at once")
                waiting.clear()
                _cancel_all(handles)
            elif ended in handles:
                yield _collect(*handles.pop(ended))


def _cancel_all(handles: Mapping[str, tuple[Job, RequestHandle]]) -> None:
    for _, handle in handles.values():
        handle.cancel("interrupted")


def _submit_next(
    engine: Engine, waiting: deque[Job], handles: dict[str, tuple[Job, RequestHandle]], note: Callable[[Any], None]
) -> list[Ended] | None:
    """Submit a job; return it if it is refused, and None if the engine's queue is full and jobs have to end first."""
    job = waiting.popleft()
    try:
        handles[job.request_id] = job, _submit(engine, job, note)
    except QueueFullError as error:
        if not handles:
            return [Ended(job, None, error)]
        waiting.appendleft(job)
        return None
    except Exception as error:  # noqa: BLE001 - one job's error, of whatever kind, ends that job alone
        return [Ended(job, None, error)]
    return []


def _submit(engine: Engine, job: Job, note: Callable[[Any], None]) -> RequestHandle:
    if job.saved is not None:
        return engine.submit_saved(job.saved, on_event=note)
    return engine.submit_prepared(job.prepared, on_event=note, note={"artifact": job.artifact})


def _collect(job: Job, handle: RequestHandle) -> Ended:
    try:
        return Ended(job, handle.result(), None)
    except Exception as error:  # noqa: BLE001 - one job's error, of whatever kind, ends that job alone
        return Ended(job, None, error)
