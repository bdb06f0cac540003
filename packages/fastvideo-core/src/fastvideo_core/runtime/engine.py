"""The engine: one resident model, many requests, one control plane."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fastvideo_core.cache import CachePools
from fastvideo_core.card import ModelCard
from fastvideo_core.cost import CostModel
from fastvideo_core.defaults import DEFAULT_CARD
from fastvideo_core.errors import ExecutionError, InputError, InputWarning, ResourceError
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.request.base import Request
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.accept import check_fits, make_job
from fastvideo_core.runtime.active import Active, Rebuilt
from fastvideo_core.runtime.attention import choose_attention
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.compile_cache import CompileCache
from fastvideo_core.runtime.control import ControlPlane
from fastvideo_core.runtime.durable import SavedJob, StateStore
from fastvideo_core.runtime.engine_holds import HeldEngine
from fastvideo_core.runtime.estimate import estimate_request
from fastvideo_core.runtime.event_stream import EventStream
from fastvideo_core.runtime.handle import Publisher, RequestHandle
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.host import check_request
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.offers import Offers
from fastvideo_core.runtime.options import RuntimeOptions
from fastvideo_core.runtime.patches import WeightPatches
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_core.runtime.run import GenerationResult, RequestRun
from fastvideo_core.runtime.samplers import load_samplers, with_samplers
from fastvideo_core.runtime.scheduler.base import Limits, WorkerSlot
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.sessions import ParkedState, Session, SessionOptions
from fastvideo_core.runtime.sessions.host import EngineParts, SessionHost, stream_task
from fastvideo_core.runtime.sessions.moving import MovedSession
from fastvideo_core.runtime.sharing import SharedResults
from fastvideo_core.runtime.steps import Tap
from fastvideo_core.runtime.weights.memory import measured_limit

__all__ = ["Engine", "RequestHandle", "RuntimeOptions"]


class Engine(HeldEngine):
    """Runs requests on one resident model.

    Open one with `Engine.open`; close it, or use it as a context manager. All methods may be called from any thread.

    Args:
        instance: The model.
        options: How requests are run.
        max_running: Most requests in progress at a time; shorthand for `options.scheduler.max_running`.
        tap: Observer of intermediate tensors.
        store: Where accepted requests and their checkpoints are kept; whoever opened it closes it, and tells it when a
            result is safe.
        reload: Loads the model anew, for the case that its device is lost.
        defaults: Given a task, returns the parameters that the deploy config sets in place of the card's defaults.

    Attributes:
        costs: What steps take.
        caches: The card's caches.
    """

    def __init__(
        self,
        instance: ModelInstance,
        *,
        options: RuntimeOptions | None = None,
        max_running: int | None = None,
        tap: Tap | None = None,
        store: StateStore | None = None,
        reload: Callable[[], ModelInstance] | None = None,
        defaults: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        chosen = options or RuntimeOptions()
        config = chosen.scheduler if max_running is None else replace(chosen.scheduler, max_running=max_running)
        self._card = instance.card
        self._instance: ModelInstance | None = instance
        self._costs_file = chosen.costs_file
        self.costs = CostModel.for_device(str(instance.device), chosen.costs_file)
        self.caches = CachePools(instance.card, budgets=chosen.caches)
        offers = Offers(instance.card, self.costs)
        self._pricing = offers.pricing
        scheduler = Scheduler(
            config,
            Limits(
                memory_bytes=chosen.memory_bytes or measured_limit(str(instance.device)),
                cache_blocks=self.caches.num_blocks(),
            ),
            offers.predict,
            workers=chosen.workers or [WorkerSlot() for _ in range(chosen.num_workers)],
            can_batch=offers.can_batch if offers.has_unequal_groups else None,
            log=chosen.log,
        )
        self._hooks = instance.hooks
        self._config = config
        self._store = store
        self._reload = reload
        self._defaults = defaults
        self._patches = WeightPatches()
        self._lock = threading.Lock()
        self._open: dict[str, Active] = {}
        self._compiler = CompileCache(instance.card, instance.device, chosen.compiling)
        self._control = ControlPlane(
            instance,
            scheduler,
            offers,
            SharedResults(self.caches),
            tap=tap,
            compiler=self._compiler,
            on_committed=None if store is None else self._committed,
            on_cancelled=None if store is None else self._keep,
            rebuild=None if reload is None else self._rebuild,
        )
        parts = EngineParts(lambda: self.instance, self._control, scheduler, self.caches, offers.pricing)
        self._sessions = SessionHost(parts, chosen.sessions)

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
        store: StateStore | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        extensions: Extensions | None = None,
        defaults: Callable[[str], Mapping[str, Any]] | None = None,
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
            store: See the class.
            on_progress: Told the bytes of a download, done and in all, from any thread.
            extensions: Plugins that are on; None takes none that alters or watches what is computed.
            defaults: See the class.

        Raises:
            PluginError: A plugin that is on does not work with the card.
            UnknownCardError: There is no such card.
            CardError: The card contradicts itself or what is asked for.
            CheckpointError: Its weights are missing or broken.
            ResourceError: They do not fit into memory.
        """
        found = card if isinstance(card, ModelCard) else (catalog or Catalog.installed()).find(str(card))
        found = with_samplers(found, extensions)
        hooks, attention = InstanceHooks.of(extensions, found), choose_attention(extensions, found)
        samplers = load_samplers(extensions)

        def load() -> ModelInstance:
            return load_instance(
                found, device=device, precision=precision, tasks=tasks, on_progress=on_progress, hooks=hooks,
                attention=attention, samplers=samplers,
            )  # fmt: skip

        return cls(
            load(), options=options, max_running=max_running, tap=tap, store=store, reload=load, defaults=defaults
        )

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

    @property
    def is_healthy(self) -> bool:
        """Whether it is open and works on requests; false while a lost device is being rebuilt."""
        return self._instance is not None and self._control.is_healthy

    def responds(self, timeout_s: float = 1.0) -> bool:
        """Say whether the engine's own thread gets round to something within a time: whether it is not stuck."""
        return self._instance is not None and self._control.responds(timeout_s)

    def generate(
        self,
        prompt: str,
        *,
        task: str | None = None,
        image: Any = None,
        outputs: Sequence[str] = (),
        exact: bool = False,
        plugins: Mapping[str, Mapping[str, Any]] | None = None,
        on_event: Callable[[Any], None] | None = None,
        **parameters: Any,
    ) -> GenerationResult:
        """Generate from a prompt and wait for the result; what it carries as warnings is given as `InputWarning` too.

        Args:
            prompt: What to show.
            task: The card's task; None takes image-to-video if an image is given and the card has it, else the default.
            image: For tasks that take one: a path, a PIL image, or uint8 pixels (H, W, 3).
            outputs: Artifacts by name; empty takes the task's default.
            exact: Whether to follow the reference's order of operations to the bit.
            plugins: Options of plugins that are on, by plugin.
            on_event: Called with every event; see `submit`.
            **parameters: Parameters of the task; those left out are resolved from the card.

        Raises:
            InputError: Something given is not allowed.
            ExecutionError: A step failed.
        """
        request = self.make_request(
            prompt, task=task, image=image, outputs=outputs, exact=exact,
            parameters=parameters, plugins=plugins,
        )  # fmt: skip
        handle = self.submit(request, on_event=on_event)
        try:
            result = handle.result()
        except (KeyboardInterrupt, SystemExit):
            handle.cancel("interrupted")
            raise
        for message in result.warnings:
            warnings.warn(message, InputWarning, stacklevel=2)
        return result

    def make_request(
        self,
        prompt: str,
        *,
        task: str | None = None,
        image: Any = None,
        outputs: Sequence[str] = (),
        exact: bool = False,
        parameters: Mapping[str, Any] | None = None,
        plugins: Mapping[str, Mapping[str, Any]] | None = None,
        request_id: str | None = None,
        latency_class: str | None = None,
        deadline_s: float | None = None,
    ) -> Request:
        """Build a request of this card from a prompt; see `generate` and `Request`."""
        return build_request(
            self.card, prompt, task=task, image=image, outputs=outputs, exact=exact, parameters=parameters,
            plugins=plugins, request_id=request_id, latency_class=latency_class, deadline_s=deadline_s,
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
        return self.submit_prepared(self._prepare(request), on_event=on_event)

    def submit_prepared(
        self,
        prepared: PreparedRequest,
        *,
        on_event: Callable[[Any], None] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> RequestHandle:
        """Accept a request that `prepare_request` has checked against this engine's card.

        Args:
            prepared: The request.
            on_event: See `submit`.
            note: The caller's own words, kept with the request where the engine has a store.
        """
        return self._accept(prepared, on_event, note=note)

    def submit_saved(
        self,
        saved: SavedJob,
        *,
        on_event: Callable[[Any], None] | None = None,
        on_handle: Callable[[RequestHandle], None] | None = None,
    ) -> RequestHandle:
        """Take up a request of the store where its last checkpoint was; see `submit`.

        Args:
            saved: The request.
            on_event: As for `submit`.
            on_handle: Given the handle before the request is accepted: what is cancelled from then on runs no step.
        """
        return self._accept(saved.prepared, on_event, saved=saved, on_handle=on_handle)

    def session(
        self,
        prompt: str,
        *,
        task: str | None = None,
        image: Any = None,
        exact: bool = False,
        options: SessionOptions | None = None,
        parked: ParkedState | None = None,
        session_id: str | None = None,
        latency_class: str = "interactive",
        **parameters: Any,
    ) -> Session:
        """Begin a stream that can be steered while it runs; it needs a card with a task that makes streams.

        Args:
            prompt: What to show first.
            task: The card's task; None takes the first that makes streams.
            image: For tasks that take one; see `generate`.
            exact: Whether to follow the reference's order of operations to the bit.
            options: How it runs; None takes the defaults.
            parked: A snapshot, or the state of a session elsewhere, to go on from in place of the beginning.
            session_id: Its name; None makes one up.
            latency_class: How urgent its chunks are.
            **parameters: Parameters of the task; those left out are resolved from the card.

        Raises:
            InputError: Something given is not allowed.
            SessionLimitError: As many sessions as are allowed are there.
            ResourceError: The engine is closed, or there could never be a place for it.
        """
        request = self.make_request(
            prompt, task=task or stream_task(self.card, has_image=image is not None), image=image, exact=exact,
            parameters=parameters, request_id=session_id, latency_class=latency_class,
        )  # fmt: skip
        return self.session_prepared(self._prepare(request), options, parked=parked)

    def session_prepared(
        self, prepared: PreparedRequest, options: SessionOptions | None = None, *, parked: ParkedState | None = None
    ) -> Session:
        """Begin the stream of a request that `prepare_request` has checked against this engine's card."""
        return self._sessions.open(prepared, options or SessionOptions(), parked=parked)

    def install_session(self, moved: MovedSession, options: SessionOptions, *, seen: int = 0) -> Session:
        """Make a session that has come from elsewhere, frozen; see `fastvideo_core.runtime.sessions.migration`."""
        return self._sessions.install(moved, options, seen=seen)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions that have not ended."""
        return self._sessions.sessions

    def close(self) -> None:
        """Cancel what runs at its next step boundary, wait for that, and let go of the model. Again, it does nothing.

        Raises:
            ExecutionError: It is called in an event's callback, where it would wait for itself.
            PluginError: An observer could not write what it has.
        """
        if self._control.is_own_thread:
            raise ExecutionError("an event's callback cannot close the engine that calls it; close it elsewhere")
        self._sessions.close()
        with self._lock:
            if self._instance is None:
                return
            self._instance = None
            for active in self._open.values():
                active.run.cancel.cancel(active.run.scope, "the engine was closed")
        self._control.close()
        if self._costs_file is not None:
            self.costs.save(self._costs_file)
        if self._hooks is not None:
            self._hooks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, request: Request) -> PreparedRequest:
        self.card.task(request.task)  # the config has nothing to say of a task that there is not
        return prepare_request(
            self.card, request, deploy=None if self._defaults is None else self._defaults(request.task)
        )

    def _accept(
        self,
        prepared: PreparedRequest,
        on_event: Callable[[Any], None] | None,
        *,
        note: Mapping[str, Any] | None = None,
        saved: SavedJob | None = None,
        on_handle: Callable[[RequestHandle], None] | None = None,
    ) -> RequestHandle:
        request_id = prepared.request.request_id
        events = EventStream()
        with self._lock:
            instance = self.instance
            check_fits(prepared, instance)
            if request_id in self._open:
                raise InputError("a request of this id is running", field="request_id", value=request_id)
            warned = () if saved is not None else check_request(prepared, instance.view)
            run = RequestRun(prepared, instance, Publisher(events, on_event), warnings=warned, slabs=self.caches.slabs)
            active = Active(run, make_job(prepared, self._config), on_end=lambda: self._ended(request_id, events))
            self._open[request_id] = active
        handle = RequestHandle(run, active.future, events)
        try:
            if on_handle is not None:
                on_handle(handle)
            self._admit(active, instance, saved, note)
        except BaseException:
            with self._lock:
                del self._open[request_id]
            raise
        return handle

    def _admit(
        self, active: Active, instance: ModelInstance, saved: SavedJob | None, note: Mapping[str, Any] | None
    ) -> None:
        """Let a request be stored, where there is a store, priced, and taken into the queue."""
        if saved is not None:
            active.run.restore(saved.nodes, instance)
        elif self._store is not None:
            self._store.accept(active.run.prepared, instance, note=note)
        try:
            self._control.call(lambda: self._price(active, instance))
        except BaseException:
            if saved is None and self._store is not None:
                self._store.finish(active.run.request_id)
            raise

    def _price(self, active: Active, instance: ModelInstance) -> None:
        """Fill in what a request needs and hand it to the scheduler, on the control plane's thread."""
        estimate = estimate_request(active.run.prepared, instance.view, self._pricing, active.run.run_hooks)
        job = active.job
        job.resident_bytes, job.peak_bytes = estimate.resident_bytes, estimate.peak_bytes
        job.cache_blocks, job.remaining_s = estimate.cache_blocks, estimate.seconds
        active.estimate = estimate
        self._control.accept(active)

    def _ended(self, request_id: str, events: EventStream) -> None:
        with self._lock:
            self._open.pop(request_id, None)
        events.close()

    def _committed(self, active: Active, seconds: float) -> None:
        """Save a request's states when the compute since the last time is worth it."""
        assert self._store is not None, "without a store nobody calls this"
        if active.run.outside is None and self._store.is_due(active.run.request_id, seconds):
            self._keep(active)

    def _keep(self, active: Active) -> None:
        assert self._store is not None, "without a store nobody calls this"
        self._store.checkpoint(active.run.request_id, active.run.snapshot())

    def _rebuild(self, request_ids: list[str]) -> Rebuilt:
        """Load the model and the last checkpoints, on a worker."""
        assert self._reload is not None
        self._compiler.forget()
        instance = self._reload()
        self._patches.put_on_again(instance)
        nodes = {}
        for request_id in request_ids:
            saved = None if self._store is None else self._store.reload(request_id, instance)
            if isinstance(saved, SavedJob):
                nodes[request_id] = saved.nodes
        with self._lock:
            if self._instance is not None:
                self._instance = instance
        return Rebuilt(instance, nodes)
