"""The engine: one resident model, many requests, one control plane."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from fastvideo_core.card import ModelCard
from fastvideo_core.cost import CostModel
from fastvideo_core.errors import ExecutionError, InputError, ResourceError
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.request.base import Request
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import DEFAULT_CARD, Catalog
from fastvideo_core.runtime.control import Active, ControlPlane
from fastvideo_core.runtime.estimate import estimate_request
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.offers import Offers
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_core.runtime.run import GenerationResult, RequestRun
from fastvideo_core.runtime.scheduler.base import Job, Limits, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.scheduler.log import DecisionLog
from fastvideo_core.runtime.steps import Tap
from fastvideo_core.runtime.weights.memory import measured_limit

__all__ = ["DEFAULT_CARD", "Engine", "RequestHandle", "RuntimeOptions"]

_LOG = logging.getLogger(__name__)


class RequestHandle:
    """A request that an engine has accepted. It holds on to its result and events, not to the model."""

    def __init__(self, run: RequestRun, future: Future[GenerationResult], events: SimpleQueue[Any]) -> None:
        self._scope = run.scope
        self._cancel = run.cancel
        self._future = future
        self._events = events

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._scope.scope_id

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancel it at its next step boundary, at once while it waits; does nothing once it has ended."""
        self._cancel.cancel(self._scope, reason)

    def result(self, timeout_s: float | None = None) -> GenerationResult:
        """Wait for the result; never in an event's callback, which would wait for itself.

        Raises:
            TimeoutError: It takes longer; the request goes on.
            FastVideoError: Why the request ended without one.
        """
        return self._future.result(timeout_s)

    def events(self) -> Iterator[Any]:
        """Yield the events in order, the last one included; blocks while there is none. Each is given out once."""
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)  # for whoever else asks

    def __await__(self) -> Generator[Any, None, GenerationResult]:
        """Wait for the result in a coroutine; if that is cancelled, so is the request."""
        return self._wait().__await__()

    async def _wait(self) -> GenerationResult:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(_: Future[GenerationResult]) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed, so nobody waits
                loop.call_soon_threadsafe(ended.set)

        self._future.add_done_callback(tell)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.cancel("whoever awaited it was cancelled")
            raise
        return self._future.result()


class _Publisher:
    """Puts a request's events into its stream, and calls the caller back, which can do no harm to the engine."""

    def __init__(self, events: SimpleQueue[Any], on_event: Callable[[Any], None] | None) -> None:
        self._events = events
        self._on_event = on_event

    def __call__(self, event: Any) -> None:
        self._events.put(event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except BaseException:  # noqa: BLE001 - whatever it raises, an exit included, must not end the control plane
            # The request is not to blame for who looks on.
            _LOG.exception("request:%s: the event callback failed and is not called again", event.request_id)
            self._on_event = None


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How an engine runs requests.

    Attributes:
        scheduler: Settings of the scheduler.
        num_workers: Threads that run steps; more than one pays where single steps leave the device idle.
        memory_bytes: Bytes for all requests together, besides the weights; None takes what is available at the start,
            less a tenth.
        costs_file: File that the cost model's calibrations are read from and written to; None keeps them in memory.
        log: Where the scheduler's decisions are written for a replay.
    """

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_workers: int = 1
    memory_bytes: int | None = None
    costs_file: Path | None = None
    log: DecisionLog | None = None


class Engine:
    """Runs requests on one resident model.

    Open one with `Engine.open`; close it, or use it as a context manager. All methods may be called from any thread.

    Args:
        instance: The model.
        options: How requests are run.
        max_running: Most requests in progress at a time; shorthand for `options.scheduler.max_running`.
        tap: Observer of intermediate tensors.
    """

    def __init__(
        self,
        instance: ModelInstance,
        *,
        options: RuntimeOptions | None = None,
        max_running: int | None = None,
        tap: Tap | None = None,
    ) -> None:
        chosen = options or RuntimeOptions()
        config = chosen.scheduler if max_running is None else replace(chosen.scheduler, max_running=max_running)
        self._card = instance.card
        self._instance: ModelInstance | None = instance
        self._costs_file = chosen.costs_file
        self.costs = CostModel.for_device(str(instance.device), chosen.costs_file)
        offers = Offers(instance.card, self.costs)
        scheduler = Scheduler(
            config,
            Limits(memory_bytes=chosen.memory_bytes or measured_limit(str(instance.device))),
            offers.predict,
            workers=[WorkerSlot() for _ in range(chosen.num_workers)],
            can_batch=offers.can_batch if offers.has_unequal_groups else None,
            log=chosen.log,
        )
        self._config = config
        self._lock = threading.Lock()
        self._open: dict[str, Active] = {}
        self._control = ControlPlane(instance, scheduler, offers, tap=tap)

    @classmethod
    def open(
        cls,
        card: str | Path | ModelCard = DEFAULT_CARD,
        *,
        device: str = "auto",
        precision: str | None = None,
        tasks: Sequence[str] | None = None,
        catalog: Catalog | None = None,
        max_running: int | None = None,
        options: RuntimeOptions | None = None,
        tap: Tap | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Load a card and start an engine for it. What is read is logged, one line a component, at level INFO.

        Args:
            card: Id of an installed card, a local folder, a hub repository `org/name`, or a card.
            device: "auto", "cpu", "cuda" or "cuda:0".
            precision: Number format; None takes the card's default (float32 on a CPU where the card allows it).
            tasks: Tasks whose components are loaded; None loads those of all tasks.
            catalog: Where cards are looked up; None looks in the installed plugins.
            max_running: Most requests in progress at a time; others wait.
            options: How requests are run.
            tap: Observer of intermediate tensors.
            on_progress: Told the bytes of a download, done and in all, from any thread.

        Raises:
            UnknownCardError: There is no such card.
            CardError: The card contradicts itself or what is asked for.
            CheckpointError: Its weights are missing or broken.
            ResourceError: They do not fit into memory.
        """
        found = card if isinstance(card, ModelCard) else (catalog or Catalog.installed()).find(str(card))
        instance = load_instance(found, device=device, precision=precision, tasks=tasks, on_progress=on_progress)
        return cls(instance, options=options, max_running=max_running, tap=tap)

    @property
    def card(self) -> ModelCard:
        """The card that is loaded."""
        return self._card

    @property
    def instance(self) -> ModelInstance:
        """The resident model.

        Raises:
            ResourceError: The engine is closed.
        """
        if self._instance is None:
            raise ResourceError("the engine is closed; open another one")
        return self._instance

    def generate(
        self,
        prompt: str,
        *,
        task: str | None = None,
        image: Any = None,
        outputs: Sequence[str] = (),
        exact: bool = False,
        on_event: Callable[[Any], None] | None = None,
        **parameters: Any,
    ) -> GenerationResult:
        """Generate from a prompt and wait for the result.

        Args:
            prompt: What to show.
            task: The card's task; None takes image-to-video if an image is given and the card has it, else the default.
            image: For tasks that take one: a path, a PIL image, or uint8 pixels (H, W, 3).
            outputs: Artifacts by name; empty takes the task's default.
            exact: Whether to follow the reference's order of operations to the bit.
            on_event: Called with every event; see `submit`.
            **parameters: Parameters of the task; those left out are resolved from the card.

        Raises:
            InputError: Something given is not allowed.
            ExecutionError: A step failed.
        """
        request = self.make_request(
            prompt, task=task, image=image, outputs=outputs, exact=exact,
            parameters=parameters,
        )  # fmt: skip
        handle = self.submit(request, on_event=on_event)
        try:
            return handle.result()
        except (KeyboardInterrupt, SystemExit):
            handle.cancel("interrupted")
            raise

    def make_request(
        self,
        prompt: str,
        *,
        task: str | None = None,
        image: Any = None,
        outputs: Sequence[str] = (),
        exact: bool = False,
        parameters: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Request:
        """Build a request of this card from a prompt; see `generate`."""
        return build_request(
            self.card, prompt, task=task, image=image, outputs=outputs, exact=exact,
            parameters=parameters, request_id=request_id,
        )  # fmt: skip

    def submit(self, request: Request, *, on_event: Callable[[Any], None] | None = None) -> RequestHandle:
        """Accept a request.

        Args:
            request: The request.
            on_event: Called with every event, on the engine's own thread: it must not block. If it raises, that is
                logged, it is not called again, and the request goes on.

        Raises:
            InputError: It is not valid for the card, or its id is in use.
            CheckpointError: Its task needs components that were not loaded.
            ResourceError: The engine is closed.
        """
        return self.submit_prepared(prepare_request(self.card, request), on_event=on_event)

    def submit_prepared(
        self, prepared: PreparedRequest, *, on_event: Callable[[Any], None] | None = None
    ) -> RequestHandle:
        """Accept a request that `prepare_request` has checked against this engine's card."""
        return self._accept(prepared, on_event)

    def close(self) -> None:
        """Cancel what runs at its next step boundary, wait for that, and let go of the model. Again, it does nothing.

        Raises:
            ExecutionError: It is called in an event's callback, where it would wait for itself.
        """
        if self._control.is_own_thread:
            raise ExecutionError("an event's callback cannot close the engine that calls it; close it elsewhere")
        with self._lock:
            if self._instance is None:
                return
            self._instance = None
            for active in self._open.values():
                active.run.cancel.cancel(active.run.scope, "the engine was closed")
        self._control.close()
        if self._costs_file is not None:
            self.costs.save(self._costs_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, prepared: PreparedRequest, on_event: Callable[[Any], None] | None) -> RequestHandle:
        request_id = prepared.request.request_id
        events: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            instance = self.instance
            _check_fits(prepared, instance)
            if request_id in self._open:
                raise InputError("a request of this id is running", field="request_id", value=request_id)
            run = RequestRun(prepared, instance, _Publisher(events, on_event))
            active = Active(run, _job(prepared, self._config), on_end=lambda: self._ended(request_id, events))
            self._open[request_id] = active
        try:
            self._control.call(lambda: self._admit(active, instance))
        except BaseException:
            with self._lock:
                del self._open[request_id]
            raise
        return RequestHandle(run, active.future, events)

    def _admit(self, active: Active, instance: ModelInstance) -> None:
        """Price a request and hand it to the scheduler, on the control plane's thread."""
        estimate = estimate_request(active.run.prepared, instance.view, self.costs)
        job = active.job
        job.resident_bytes, job.peak_bytes = estimate.resident_bytes, estimate.peak_bytes
        job.cache_blocks, job.remaining_s = estimate.cache_blocks, estimate.seconds
        self._control.accept(active)

    def _ended(self, request_id: str, events: SimpleQueue[Any]) -> None:
        with self._lock:
            self._open.pop(request_id, None)
        events.put(None)


def _job(prepared: PreparedRequest, config: SchedulerConfig) -> Job:
    """Return the scheduler's view of a request, its needs not yet known.

    Raises:
        InputError: Its latency class is not one of the engine's.
    """
    request, now = prepared.request, time.monotonic()
    latency_class = config.classes.get(request.latency_class)
    if latency_class is None:
        raise InputError(
            "no such class", field="latency_class", value=request.latency_class, allowed=", ".join(config.classes)
        )
    deadline_at = None if request.deadline_s is None else now + request.deadline_s
    return Job(request.request_id, latency_class, now, deadline_at=deadline_at)


def _check_fits(prepared: PreparedRequest, instance: ModelInstance) -> None:
    """Refuse a request of another card, or one whose loops need what is not loaded, before any step is made."""
    if prepared.card is not instance.card and prepared.card != instance.card:
        raise InputError(
            "the request was prepared for another card", field="card", value=prepared.card.model_id,
            allowed=instance.card.model_id,
        )  # fmt: skip
    for node in prepared.nodes:
        if isinstance(node, ModelLoopNode):
            instance.loop(node.loop)
