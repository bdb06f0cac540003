"""One request in progress: the nodes of its program, its state, its events, its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from fastvideo_core.errors import CancelledError, ExecutionError, FastVideoError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult
from fastvideo_core.loop.driver import LoopRun, drive
from fastvideo_core.loop.work import StepResult, Wait, WorkPlan
from fastvideo_core.program.base import ArtifactNode, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_core.request.artifacts import Artifact
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.artifacts import make_artifact
from fastvideo_core.runtime.executor import Executor
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.progress import EventLog, Progress

__all__ = ["GenerationResult", "RequestRun", "make_generator"]

_T = TypeVar("_T")


def make_generator(seed: int) -> torch.Generator:
    """Return the CPU generator of a seed: the same noise on every device, and the noise that diffusers draws."""
    return torch.Generator("cpu").manual_seed(seed)


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What a request gives back.

    Attributes:
        request_id: The request.
        artifacts: Artifacts by name.
        parameters: What it ran with, with the source of each value.
        duration_s: From acceptance to the last artifact, in seconds.
        node_durations_s: Seconds in each node of the program, waiting included.
    """

    request_id: str
    artifacts: Mapping[str, Artifact]
    parameters: ResolvedParameters
    duration_s: float
    node_durations_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """The seed that ran."""
        return self.parameters.get("seed")

    @property
    def video(self) -> Any:
        """The video artifact."""
        return self.artifacts["video"]

    @property
    def latents(self) -> Any:
        """The latents artifact."""
        return self.artifacts["latents"]


class _NodeContext:
    """What the driver of one node is given."""

    __slots__ = ("_executor", "_progress", "_run", "_scope")

    def __init__(self, executor: Executor, progress: Progress, run: RequestRun, scope: CancelScope) -> None:
        self._executor = executor
        self._progress = progress
        self._run = run
        self._scope = scope

    async def execute(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        self._progress.started()
        return await self._executor.execute(plan)

    async def wait(self, wait: Wait) -> Any:
        if wait.until_s is None:
            raise ExecutionError(f"{self._scope.path()}: the loop waits for its {wait.reason}; only a session has one")
        await self._run.unless_cancelled(asyncio.sleep(max(0.0, wait.until_s - time.monotonic())), self._scope)

    async def committed(self, run: LoopRun[Any], plan: WorkPlan[Any], result: StepResult[Any]) -> None:
        self._progress.committed(run.node_id, plan, result)


class RequestRun:
    """Runs a prepared request on one resident model, from `init` of its first loop to its last artifact.

    Args:
        prepared: The request.
        instance: The model.
        executor: Where steps run.
        on_event: Called with every event, in order, on the control plane; it must neither block nor raise.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        instance: ModelInstance,
        executor: Executor,
        on_event: Callable[[Any], None],
    ) -> None:
        self.prepared = prepared
        self.scope = CancelScope("request", prepared.request.request_id)
        self.cancel = CancelState()
        self.loop_runs: dict[str, LoopRun[Any]] = {}
        self._instance = instance
        self._executor = executor
        self._events = EventLog(prepared, on_event)
        self._progress = Progress(prepared, self._events)
        self._accepted_at = time.monotonic()
        self._durations: dict[str, float] = {}

    async def run(self, slots: asyncio.Semaphore) -> GenerationResult:
        """Wait for a slot, then run all nodes; independent ones side by side.

        Raises:
            FastVideoError: Why the request ended early; the event stream has said so by then.
        """
        self._events.accepted()
        try:
            await self.unless_cancelled(slots.acquire(), self.scope)
            try:
                artifacts = await self._run_nodes()
            finally:
                slots.release()
        except CancelledError as error:
            self._events.cancelled(str(error))
            raise
        except asyncio.CancelledError:
            self._events.cancelled("the engine was closed")
            raise
        except Exception as error:
            self._events.failed(error)
            raise
        duration_s = time.monotonic() - self._accepted_at
        self._events.completed(tuple(artifacts), duration_s)
        return GenerationResult(
            self.prepared.request.request_id, artifacts, self.prepared.parameters, duration_s, dict(self._durations)
        )

    async def unless_cancelled(self, awaitable: Awaitable[_T], scope: CancelScope) -> _T:
        """Wait for something that may take for ever, until it happens or the scope is cancelled.

        Raises:
            CancelledError: The scope was cancelled first.
        """
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(awaitable)

        def wake() -> None:
            if self.cancel.reason(scope) is not None:
                with suppress(RuntimeError):  # the control plane has stopped, so nobody waits
                    loop.call_soon_threadsafe(waiting.cancel)

        with self.cancel.listening(wake):
            try:
                self.cancel.check(scope)
                return await waiting
            except asyncio.CancelledError:
                self.cancel.check(scope)
                raise
            finally:
                waiting.cancel()

    async def _run_nodes(self) -> dict[str, Artifact]:
        results: dict[str, asyncio.Task[Any]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for node in self.prepared.nodes:
                    results[node.node_id] = group.create_task(self._run_node(node, results))
            made = [node for node in self.prepared.nodes if isinstance(node, ArtifactNode)]
            return {node.node_id: results[node.node_id].result() for node in made}
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            results.clear()  # the nodes' tasks, their errors and their frames refer to each other through it

    async def _run_node(self, node: ModelLoopNode | ArtifactNode, results: Mapping[str, asyncio.Task[Any]]) -> Any:
        if isinstance(node, ArtifactNode):
            source: LoopResult = await results[node.source.node]
            return await self._make_artifact(node, self._output(node.source, source))
        inputs = {}
        for port, edge in node.inputs.items():
            if isinstance(edge, InputEdge):
                inputs[port] = self.prepared.inputs.get(edge.name)
            else:
                upstream: LoopResult | None = await results[edge.node]
                inputs[port] = None if upstream is None else self._output(edge, upstream)
        started_at = time.monotonic()
        try:
            if node.requires_input is not None and self.prepared.inputs.get(node.requires_input) is None:
                return None
            return await self._run_loop(node, inputs)
        finally:
            self._progress.finished(node.node_id)
            self._durations[node.node_id] = time.monotonic() - started_at

    def _output(self, edge: TensorEdge, result: LoopResult) -> Any:
        if edge.output in result.outputs:
            return result.outputs[edge.output]
        given = ", ".join(result.outputs) or "nothing"
        raise ExecutionError(f"{self.scope.path()}: loop {edge.node} gave no {edge.output!r}; it gave {given}")

    async def _run_loop(self, node: ModelLoopNode, inputs: Mapping[str, Any]) -> LoopResult:
        scope = self.scope.child("loop", node.node_id)
        self.cancel.check(scope)
        request = self._loop_request(node, inputs, scope)
        loop = self._instance.loop(node.loop)
        state = await self._executor.call(
            lambda: loop.init(request, LoopContext(make_generator)), where=f"{scope.path()}: the start of {node.loop}"
        )
        run: LoopRun[Any] = LoopRun(loop, state, scope=scope, cancel=self.cancel, node_id=node.node_id)
        self.loop_runs[node.node_id] = run
        try:
            return await drive(run, _NodeContext(self._executor, self._progress, self, scope))
        except FastVideoError:
            raise
        except (Exception, SystemExit) as error:  # steps are guarded; this is the loop's own code, on the control plane
            raise as_failure(error, f"{scope.path()}: {node.loop}, after {run.num_committed} steps,") from error
        finally:
            del self.loop_runs[node.node_id]

    def _loop_request(self, node: ModelLoopNode, inputs: Mapping[str, Any], scope: CancelScope) -> LoopRequest:
        request = self.prepared.request
        return LoopRequest(
            request_id=request.request_id,
            node_id=node.node_id,
            loop_id=node.loop,
            parameters=self.prepared.parameters_of(node.node_id),
            inputs=inputs,
            cancel_scope=scope,
            profile="rollout" if request.outputs.capture_behavior else "serve",
            is_exact=request.exact,
        )

    async def _make_artifact(self, node: ArtifactNode, value: Any) -> Artifact:
        self.cancel.check(self.scope)
        artifact = await self._executor.call(
            lambda: make_artifact(node, value, self.prepared, self._instance),
            where=f"{self.scope.path()}: the artifact {node.node_id}",
        )
        self._events.artifact(node.node_id, node.modality)
        return artifact


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a group of tasks: the first that is not the cancellation of the others."""
    for error in errors.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(found, asyncio.CancelledError):
            return found
    return errors
