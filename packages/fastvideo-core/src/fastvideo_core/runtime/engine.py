"""The engine: one resident model, many requests, one control plane."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CancelledError, InputError, ResourceError
from fastvideo_core.request.base import Request
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import DEFAULT_CARD, Catalog
from fastvideo_core.runtime.executor import SerialExecutor, Tap
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_core.runtime.run import GenerationResult, RequestRun

__all__ = ["DEFAULT_CARD", "Engine", "RequestHandle"]


class RequestHandle:
    """A request that an engine has accepted."""

    def __init__(self, run: RequestRun, future: Future[GenerationResult], events: SimpleQueue[Any]) -> None:
        self._run = run
        self._future = future
        self._events = events

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._run.prepared.request.request_id

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """Cancel it at its next step boundary; does nothing once it has ended."""
        self._run.cancel.cancel(self._run.scope, reason)

    def result(self, timeout_s: float | None = None) -> GenerationResult:
        """Wait for the result.

        Raises:
            TimeoutError: It takes longer; the request goes on.
            FastVideoError: Why the request ended without one.
        """
        try:
            return self._future.result(timeout_s)
        except FutureCancelledError:
            raise CancelledError(f"request:{self.request_id}: the engine was closed") from None

    def events(self) -> Iterator[Any]:
        """Yield the events in order, the last one included; blocks while there is none."""
        while (event := self._events.get()) is not None:
            yield event

    def __await__(self) -> Any:
        """Wait for the result in a coroutine."""
        return asyncio.wrap_future(self._future).__await__()


class Engine:
    """Runs requests on one resident model.

    Open one with `Engine.open`; close it, or use it as a context manager. All methods may be called from any thread.
    """

    def __init__(self, instance: ModelInstance, *, max_running: int = 4, tap: Tap | None = None) -> None:
        if max_running < 1:
            raise InputError(
                "at least one request must run", field="max_running", value=max_running, allowed="1 or more"
            )
        self.instance = instance
        self._executor = SerialExecutor({instance.instance_id: instance}, tap=tap)
        self._runs: dict[str, RequestRun] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._control = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(max_running)
        self._thread = threading.Thread(target=self._control.run_forever, name="fastvideo-control", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        card: str | Path | ModelCard = DEFAULT_CARD,
        *,
        device: str = "auto",
        precision: str | None = None,
        tasks: Sequence[str] | None = None,
        catalog: Catalog | None = None,
        max_running: int = 4,
        tap: Tap | None = None,
    ) -> Self:
        """Load a card and start an engine for it.

        Args:
            card: Id of an installed card, a local folder, a hub repository `org/name`, or a card.
            device: "auto", "cpu", "cuda" or "cuda:0".
            precision: Number format; None takes the card's default (float32 on a CPU where the card allows it).
            tasks: Tasks whose components are loaded; None loads those of all tasks.
            catalog: Where cards are looked up; None looks in the installed plugins.
            max_running: Most requests in progress at a time; others wait.
            tap: Observer of intermediate tensors.

        Raises:
            UnknownCardError: There is no such card.
            CardError: The card contradicts itself or what is asked for.
            CheckpointError: Its weights are missing or broken.
            ResourceError: They do not fit into memory.
        """
        found = card if isinstance(card, ModelCard) else (catalog or Catalog.installed()).find(str(card))
        instance = load_instance(found, device=device, precision=precision, tasks=tasks)
        return cls(instance, max_running=max_running, tap=tap)

    @property
    def card(self) -> ModelCard:
        """The card that is loaded."""
        return self.instance.card

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
            on_event: Called with every event.
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
        except KeyboardInterrupt:
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

        Raises:
            InputError: It is not valid for the card, or its id is in use.
            ResourceError: The engine is closed.
        """
        return self.submit_prepared(prepare_request(self.card, request), on_event=on_event)

    def submit_prepared(
        self, prepared: PreparedRequest, *, on_event: Callable[[Any], None] | None = None
    ) -> RequestHandle:
        """Accept a request that `prepare_request` has checked against this engine's card."""
        events: SimpleQueue[Any] = SimpleQueue()

        def publish(event: Any) -> None:
            events.put(event)
            if on_event is not None:
                on_event(event)

        run = RequestRun(prepared, self.instance, self._executor, publish)
        request_id = prepared.request.request_id
        with self._lock:
            if self._is_closed:
                raise ResourceError("the engine is closed; open another one")
            if request_id in self._runs:
                raise InputError("a request of this id is running", field="request_id", value=request_id)
            self._runs[request_id] = run
            future = asyncio.run_coroutine_threadsafe(self._run(run, events), self._control)
        return RequestHandle(run, future, events)

    def close(self) -> None:
        """Cancel what runs at its next step boundary, wait for that, and free the model."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for run in self._runs.values():
                run.cancel.cancel(run.scope, "the engine was closed")
        asyncio.run_coroutine_threadsafe(self._drain(), self._control).result()
        self._control.call_soon_threadsafe(self._control.stop)
        self._thread.join()
        self._control.close()
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self, run: RequestRun, events: SimpleQueue[Any]) -> GenerationResult:
        try:
            async with self._slots:
                return await run.run()
        finally:
            with self._lock:
                self._runs.pop(run.prepared.request.request_id, None)
            events.put(None)

    async def _drain(self) -> None:
        own = asyncio.current_task()
        pending: list[Coroutine[Any, Any, Any] | asyncio.Task[Any]] = [t for t in asyncio.all_tasks() if t is not own]
        await asyncio.gather(*pending, return_exceptions=True)
