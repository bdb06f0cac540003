"""One request in progress: the nodes of its program, their states and results, its events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from fastvideo_core.cache import CachePools, SlabPool
from fastvideo_core.errors import CancelledError, ExecutionError, FastVideoError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult
from fastvideo_core.loop.chunks import attach_slabs
from fastvideo_core.loop.driver import LoopRun, drive
from fastvideo_core.loop.hooks import RunHooks
from fastvideo_core.loop.work import StepResult, Wait, WorkPlan
from fastvideo_core.program.base import ArtifactNode, ModelLoopNode, TensorEdge
from fastvideo_core.request.artifacts import Artifact
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.runtime.artifacts import make_artifact
from fastvideo_core.runtime.durable.base import FinishedNode, NodeState, RunningNode
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest, known_inputs, plugin_options
from fastvideo_core.runtime.progress import EventLog, Progress, StepReport
from fastvideo_core.runtime.result import GenerationResult

__all__ = ["GenerationResult", "HostWork", "Node", "NodeContext", "Outside", "RequestRun", "make_generator"]

Node = ModelLoopNode | ArtifactNode


def make_generator(seed: int) -> torch.Generator:
    """Return the CPU generator of a seed: the same noise on every device, and the noise that diffusers draws."""
    return torch.Generator("cpu").manual_seed(seed)


@dataclass(frozen=True, slots=True)
class HostWork:
    """Work of the device plane that is no step: drawing noise, converting frames.

    Attributes:
        function: What is done.
        where: What it is, as the beginning of a message.
    """

    function: Callable[[], Any]
    where: str

    def do(self) -> Any:
        """Do it; whatever it raises ends one request and not the worker.

        Raises:
            FastVideoError: Why it failed.
        """
        try:
            return self.function()
        except BaseException as error:
            failure = as_failure(error, self.where)
            if failure is error:
                raise
            raise failure from error


class _Asked:
    """An awaitable that hands a wish to whoever runs the coroutine, and takes the answer."""

    __slots__ = ("_wish",)

    def __init__(self, wish: Any) -> None:
        self._wish = wish

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._wish)


class Outside(Protocol):
    """A session, as the request that makes its stream sees it; everything is called on the control plane.

    Attributes:
        events: The session's event log.
        progress: What becomes of committed steps.
    """

    events: EventLog
    progress: Progress

    def boundary(self, run: LoopRun[Any], context: NodeContext) -> Awaitable[None] | None:
        """Look at a step boundary of one of its loops; see `DriverContext.boundary`.

        Raises:
            CancelledError: The stream is to end here, or to go on elsewhere.
        """
        ...

    def wait(self, wait: Wait, context: NodeContext) -> Awaitable[bool]:
        """Let one of its loops wait; see `DriverContext.wait`."""
        ...

    def ran(self, seconds: float) -> None:
        """Take note that a step has run that was predicted to take so many seconds alone."""
        ...

    def park(self, nodes: Mapping[str, NodeState]) -> None:
        """Take what there is of the stream, as it ends before its time."""
        ...


class NodeContext:
    """What the driver of one node is given: its wishes go to the control plane, which sends the answers back.

    Args:
        run: The request.
        scope: The node's scope.
    """

    __slots__ = ("_run", "_scope")

    def __init__(self, run: RequestRun, scope: CancelScope) -> None:
        self._run = run
        self._scope = scope

    def execute(self, plan: WorkPlan[Any]) -> _Asked:
        """Ask for a step."""
        self._run.progress.started()
        return _Asked(plan)

    def boundary(self, run: LoopRun[Any]) -> Awaitable[None] | None:
        """Let a session apply what has come from outside, and hold or end its loop."""
        outside = self._run.outside
        return None if outside is None else outside.boundary(run, self)

    def wait(self, wait: Wait) -> Awaitable[bool]:
        """Ask to be woken: at a time, or in a session when something has come from outside.

        Raises:
            ExecutionError: It waits for what only a session has.
        """
        if self._run.outside is not None:
            return self._run.outside.wait(wait, self)
        if wait.until_s is None:
            raise ExecutionError(f"{self._scope.path()}: the loop waits for its {wait.reason}; only a session has one")
        return self.ask(wait)

    def ask(self, wait: Wait) -> Awaitable[bool]:
        """Ask the control plane to be woken, as `wait`."""
        return _Asked(wait)

    def committed(self, run: LoopRun[Any], plan: WorkPlan[Any], result: StepResult[Any]) -> None:
        """Report a committed step, once whoever runs this has time for it; the plan, which holds tensors, is let go."""
        self._run.report(self._run, (run.node_id, plan.step_index + 1, plan.num_steps, result.chunks))


class RequestRun:
    """A prepared request on one resident model, from `init` of its first loop to its last artifact.

    It says which nodes can start, and makes a coroutine of each; the control plane runs them.

    Args:
        prepared: The request.
        instance: The model.
        on_event: Given, in order and on the control plane, functions that build the events; it must neither block nor
            raise.
        warnings: What its result is to carry, and its events to say, once it is accepted.
        slabs: Pools of slabs by name; None gives it pools of its own.
        outside: The session whose stream it makes; its events and progress are the session's then.

    Attributes:
        report: Tells of a committed step, with the arguments of `Progress.committed`, in order and before the request
            ends; at once unless a control plane has set it.
        scope: What cancels it.
        cancel: What has been cancelled of it.
        loop_runs: Loops in progress, by node.
        num_made: Steps that loops have made which have ended, by node.
        results: What nodes have given: of a loop its result, or None if it was skipped; of others the artifact.
        started: Nodes that have started.
        events: Its event log.
        progress: Its progress.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        instance: ModelInstance,
        on_event: Callable[[Any], None],
        *,
        warnings: tuple[str, ...] = (),
        slabs: Mapping[str, SlabPool] | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.outside = outside
        self.report: Callable[[RequestRun, StepReport], None] = _at_once
        self.prepared = prepared
        self.scope = CancelScope("request", prepared.request.request_id)
        self.cancel = CancelState()
        self.loop_runs: dict[str, LoopRun[Any]] = {}
        self.num_made: dict[str, int] = {}
        self.results: dict[str, Any] = {}
        self.started: set[str] = set()
        self.events = EventLog(prepared, on_event) if outside is None else outside.events
        self.progress = Progress(prepared, self.events) if outside is None else outside.progress
        self._slabs = dict(CachePools(prepared.card).slabs if slabs is None else slabs)
        self._instance: ModelInstance | None = instance
        self._warnings = warnings
        self._accepted_at = time.monotonic()
        self._durations: dict[str, float] = {}
        self._saved: dict[str, RunningNode] = {}
        self._plugin_options = plugin_options(prepared, None if instance.hooks is None else instance.hooks.extensions)
        self._needed = {node.node_id for node in prepared.nodes}

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.prepared.request.request_id

    def accepted(self) -> None:
        """Say that it is accepted, and what to expect of it."""
        self.events.accepted()
        for message in self._warnings:
            self.events.warning(message)

    def restore(self, nodes: Mapping[str, NodeState], instance: ModelInstance) -> None:
        """Go on from saved nodes instead of from where it is; from the start if there are none.

        Args:
            nodes: Nodes as they were saved.
            instance: The model to go on with.
        """
        self._instance = instance
        self.loop_runs.clear()
        self._saved = {name: node for name, node in nodes.items() if isinstance(node, RunningNode)}
        self.results = {
            name: None if node.outputs is None else LoopResult(node.outputs)
            for name, node in nodes.items()
            if isinstance(node, FinishedNode)
        }
        self.started = set(self.results)
        self._needed = self._still_needed()
        for node in self.prepared.nodes:
            if isinstance(node, ModelLoopNode) and node.node_id not in self._needed:
                self.progress.finished(node.node_id)

    def snapshot(self) -> dict[str, NodeState]:
        """Return the nodes as they are between two steps; artifacts are made anew from their loops' results."""
        nodes: dict[str, NodeState] = {}
        for node in self.prepared.nodes:
            if not isinstance(node, ModelLoopNode):
                continue
            run = self.loop_runs.get(node.node_id)
            if run is not None:
                nodes[node.node_id] = RunningNode(node.loop, run.state, run.num_committed)
            elif node.node_id in self.results:
                result: LoopResult | None = self.results[node.node_id]
                nodes[node.node_id] = FinishedNode(node.loop, None if result is None else result.outputs)
            elif node.node_id in self._saved:
                nodes[node.node_id] = self._saved[node.node_id]
        return nodes

    def next_nodes(self) -> list[Node]:
        """Return the nodes that can start, and note that they do."""
        ready = [
            node
            for node in self.prepared.nodes
            if node.node_id in self._needed and node.node_id not in self.started and self._has_sources(node)
        ]
        self.started.update(node.node_id for node in ready)
        return ready

    def finish_node(self, node: Node, result: Any) -> None:
        """Note what a node has given."""
        self.results[node.node_id] = result

    @property
    def is_complete(self) -> bool:
        """Whether all nodes have ended."""
        return self._needed <= self.results.keys()

    async def run_node(self, node: Node) -> Any:
        """Run a node whose sources have ended; what it awaits goes to the control plane.

        Raises:
            FastVideoError: Why it ended early.
        """
        scope = self.scope.child("loop", node.node_id) if isinstance(node, ModelLoopNode) else self.scope
        context = NodeContext(self, scope)
        if isinstance(node, ArtifactNode):
            return await self._make_artifact(node)
        started_at = time.monotonic()
        try:
            if node.requires_input is not None and self.prepared.inputs.get(node.requires_input) is None:
                return None
            return await self._run_loop(node, context, scope)
        finally:
            self.progress.finished(node.node_id)
            self._durations[node.node_id] = time.monotonic() - started_at

    def result(self) -> GenerationResult:
        """Return what the complete request gives, and say so."""
        made = [node.node_id for node in self.prepared.nodes if isinstance(node, ArtifactNode)]
        artifacts = {name: self.results[name] for name in made}
        duration_s = time.monotonic() - self._accepted_at
        self.events.completed(tuple(artifacts), duration_s)
        told = (dict(self._durations), self._warnings, self._captured())
        return GenerationResult(self.request_id, artifacts, self.prepared.parameters, duration_s, *told)

    def _captured(self) -> dict[str, Mapping[str, Any]]:
        if not self.prepared.request.outputs.capture_behavior:
            return {}
        return {name: one.outputs for name, one in self.results.items() if isinstance(one, LoopResult)}

    def release(self) -> None:
        """Let go of all states and results, of the model, and of whoever listens."""
        self.lose()
        self.cancel.ignore()

    def lose(self) -> None:
        """Let go of what was on a device that is lost; `restore` goes on."""
        self.loop_runs.clear()
        self.results = {}
        self._saved = {}
        self._instance = None

    def salvage(self) -> list[ArtifactNode]:
        """Return the latents that a request which fails has made, wanted or not: work that need not be lost."""
        return [
            node
            for node in self.prepared.program.nodes
            if isinstance(node, ArtifactNode)
            and node.modality == "latents"
            and isinstance(self.results.get(node.source.node), LoopResult)
        ]

    async def save(self, nodes: list[ArtifactNode]) -> dict[str, Artifact]:
        """Make artifacts of a request that fails; what cannot be made is left out, since it has failed already."""
        saved = {}
        for node in nodes:
            with suppress(FastVideoError):
                where = f"{self.scope.path()}: the artifact {node.node_id}"
                saved[node.node_id] = await self.on_device(partial(self.make_artifact, node), where)
        return saved

    def on_device(self, function: Callable[[], Any], where: str) -> Awaitable[Any]:
        """Ask for host work on the device plane."""
        return _Asked(HostWork(function, where))

    def make_artifact(self, node: ArtifactNode) -> Artifact:
        """Make an artifact of a loop's result, on the device plane."""
        assert self._instance is not None, "a request that has ended makes nothing"
        value = self._output(node.source, self.results[node.source.node])
        parts = {name: self._result(edge) for name, edge in node.parts.items()}
        return make_artifact(node, value, self.prepared, self._instance, parts=parts)

    async def _run_loop(self, node: ModelLoopNode, context: NodeContext, scope: CancelScope) -> LoopResult:
        self.cancel.check(scope)
        assert self._instance is not None, "a request that has ended runs no node"
        loop = self._instance.loop(node.loop)
        saved = self._saved.pop(node.node_id, None)
        if saved is None:
            request = self._loop_request(node, scope)
            where = f"{scope.path()}: the start of {node.loop}"
            state = await self.on_device(lambda: loop.init(request, LoopContext(make_generator, self._slabs)), where)
            saved = RunningNode(node.loop, state, 0)
            del state
        else:
            attach_slabs(saved.state, self._slabs)
        run: LoopRun[Any] = LoopRun(
            loop, saved.state, scope=scope, cancel=self.cancel, node_id=node.node_id, hooks=self.run_hooks(node.loop)
        )
        run.num_committed = saved.num_committed
        del saved
        self.loop_runs[node.node_id] = run
        try:
            return await drive(run, context)
        except CancelledError:
            # What has been committed can be saved, to be taken up again.
            self._saved[node.node_id] = RunningNode(node.loop, run.state, run.num_committed)
            raise
        except FastVideoError:
            raise
        except (Exception, SystemExit) as error:  # steps are guarded; this is the loop's own code, on the control plane
            raise as_failure(error, f"{scope.path()}: {node.loop}, after {run.num_committed} steps,") from error
        finally:
            self.num_made[node.node_id] = run.num_committed
            self.loop_runs.pop(node.node_id, None)

    def run_hooks(self, loop_id: str) -> RunHooks | None:
        """Return what the plans of a loop of its carry for interceptors; None if nothing."""
        assert self._instance is not None, "a request that has ended runs no node"
        return None if self._instance.hooks is None else self._instance.hooks.run_hooks(loop_id, self._plugin_options)

    async def _make_artifact(self, node: ArtifactNode) -> Artifact:
        self.cancel.check(self.scope)
        where = f"{self.scope.path()}: the artifact {node.node_id}"
        self._output(node.source, self.results[node.source.node])
        artifact: Artifact = await self.on_device(partial(self.make_artifact, node), where)
        self.events.artifact(node.node_id, node.modality)
        return artifact

    def _still_needed(self) -> set[str]:
        """Return the nodes that have to run: those that lead to the artifacts, back to what has been saved.

        A session makes none: the last node is its stream.
        """
        wanted = [node for node in self.prepared.nodes if isinstance(node, ArtifactNode)] or self.prepared.nodes[-1:]
        todo = [node.node_id for node in wanted]
        needed: set[str] = set()
        while todo:
            name = todo.pop()
            if name in needed or name in self.results:
                continue
            needed.add(name)
            todo += () if name in self._saved else _sources(self._node(name))
        return needed

    def _has_sources(self, node: Node) -> bool:
        return node.node_id in self._saved or all(name in self.results for name in _sources(node))

    def _node(self, node_id: str) -> Node:
        return next(node for node in self.prepared.nodes if node.node_id == node_id)

    def _inputs(self, node: ModelLoopNode) -> dict[str, Any]:
        inputs = known_inputs(node, self.prepared.inputs)
        for port, edge in node.inputs.items():
            if isinstance(edge, TensorEdge):
                inputs[port] = self._result(edge)
        return inputs

    def _result(self, edge: TensorEdge) -> Any:
        """Return a result of another loop; None if it did not run."""
        upstream: LoopResult | None = self.results[edge.node]
        return None if upstream is None else self._output(edge, upstream)

    def _output(self, edge: TensorEdge, result: LoopResult) -> Any:
        if edge.output in result.outputs:
            return result.outputs[edge.output]
        given = ", ".join(result.outputs) or "nothing"
        raise ExecutionError(f"{self.scope.path()}: loop {edge.node} gave no {edge.output!r}; it gave {given}")

    def _loop_request(self, node: ModelLoopNode, scope: CancelScope) -> LoopRequest:
        request = self.prepared.request
        return LoopRequest(
            request_id=request.request_id,
            node_id=node.node_id,
            loop_id=node.loop,
            parameters=self.prepared.parameters_of(node.node_id),
            inputs=self._inputs(node),
            cancel_scope=scope,
            profile="rollout" if request.outputs.capture_behavior else "serve",
            is_exact=request.exact,
            is_session=self.outside is not None,
            has_previews=request.outputs.previews,
            wanted=self._taken(node),
        )

    def _taken(self, node: ModelLoopNode) -> frozenset[str]:
        """Return which of a loop's outputs other nodes of the request take."""
        edges = [edge for one in self.prepared.nodes for edge in one.tensor_edges()]
        return frozenset(edge.output for edge in edges if edge.node == node.node_id)


def _sources(node: Node) -> list[str]:
    return [edge.node for edge in node.tensor_edges()]


def _at_once(run: RequestRun, report: StepReport) -> None:
    run.progress.committed(*report)
