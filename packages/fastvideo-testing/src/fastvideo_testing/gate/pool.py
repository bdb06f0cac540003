"""Runs requests on one thread, in an order that a seed decides: nothing depends on how long anything takes.

It is the control plane's work without its fairness: whichever step the dice pick runs next, with whom they pick.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastvideo_core.card import LoopSpec, resolve_ref
from fastvideo_core.errors import CancelledError, FastVideoError
from fastvideo_core.loop.state import decode_state, encode_state, encode_tree, host_tensor
from fastvideo_core.loop.work import BatchKey, ShapeSignature, WorkPlan
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.runtime.durable.base import FinishedNode, NodeState, RunningNode
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.run import HostWork, Node, RequestRun
from fastvideo_core.runtime.steps import run_call
from fastvideo_testing.gate.faults import GateError

__all__ = ["Outcome", "Pool", "run_alone"]

_ARRIVES = 0.5
"""How often a turn lets a request come rather than a step run, while there are both."""

_PREPARES = 0.7
"""How often what leads to steps goes before steps, where these may share calls: then more of them do."""


@dataclass(slots=True)
class Outcome:
    """How a request ended.

    Attributes:
        artifacts: What it made.
        error: Why it made nothing.
    """

    artifacts: Mapping[str, Any] = field(default_factory=dict)
    error: FastVideoError | None = None


@dataclass(slots=True, eq=False)
class _Task:
    """A node in progress, and what it has asked for."""

    run: RequestRun
    node: Node
    coroutine: Coroutine[Any, Any, Any]
    wish: Any = None


class Pool:
    """Runs requests.

    Args:
        instance: The model.
        seed: Decides all that is left to chance.
        max_batch: Most plans in a call.
        is_moved: Whether a request goes through bytes after each of its steps, as if it went on in another process.
        cancelled: After how many steps some requests are cancelled.
    """

    def __init__(
        self,
        instance: ModelInstance,
        *,
        seed: int = 0,
        max_batch: int = 1,
        is_moved: bool = False,
        cancelled: Mapping[str, int] | None = None,
    ) -> None:
        self._instance = instance
        self._draw = random.Random(seed)
        self._max_batch = max_batch
        self._is_moved = is_moved
        self._cancelled = dict(cancelled or {})
        self._num_committed: dict[str, int] = {}
        self._tasks: list[_Task] = []
        self._last: RequestRun | None = None
        self.outcomes: dict[str, Outcome] = {}

    def run(self, requests: Sequence[PreparedRequest]) -> dict[str, Outcome]:
        """Run requests to their ends, which come in a random order.

        Raises:
            GateError: A step changed the state that it was given.
        """
        waiting = list(requests)
        self._draw.shuffle(waiting)
        while waiting or self._tasks:
            if waiting and (not self._tasks or self._draw.random() < _ARRIVES):
                self._start(RequestRun(waiting.pop(), self._instance, _drop))
            else:
                self._take_turn()
        return self.outcomes

    def go_on(self, request: PreparedRequest, nodes: Mapping[str, NodeState]) -> Outcome:
        """Run a request to its end from where its nodes were saved."""
        run = RequestRun(request, self._instance, _drop)
        run.restore(nodes, self._instance)
        self._start(run)
        while self._tasks:
            self._take_turn()
        return self.outcomes[run.request_id]

    def _start(self, run: RequestRun) -> None:
        for node in run.next_nodes():
            task = _Task(run, node, run.run_node(node))
            self._tasks.append(task)
            self._resume(task)
            if run.request_id in self.outcomes:
                return

    def _take_turn(self) -> None:
        tasks = [task for task in self._tasks if task.run is not self._last] or self._tasks
        preparing = [task for task in tasks if isinstance(task.wish, HostWork)]
        if self._max_batch > 1 and preparing and self._draw.random() < _PREPARES:
            tasks = preparing
        head = self._draw.choice(tasks)
        self._last = head.run
        if isinstance(head.wish, HostWork):
            self._do(head, head.wish)
        elif isinstance(head.wish, WorkPlan):
            self._call([head, *self._mates(head)])
        else:
            raise GateError(f"request {head.run.request_id}: {head.node.node_id} waits; the gate knows no sessions")

    def _do(self, task: _Task, work: HostWork) -> None:
        try:
            value = work.function()
        except Exception as error:  # noqa: BLE001 - it is that request's failure
            self._resume(task, error=as_failure(error, work.where))
        else:
            self._resume(task, value)

    def _mates(self, head: _Task) -> list[_Task]:
        """Return some of those whose steps may share the call, more often all of them."""
        spec = self._spec(head.wish)
        limit = min(self._max_batch, head.wish.max_batch or spec.max_batch or self._max_batch)
        may = resolve_ref(spec.can_batch) if spec.can_batch is not None else None
        chosen = [head]
        for task in self._draw.sample(self._tasks, len(self._tasks)):
            if len(chosen) < limit and task is not head and _group(task.wish, spec) == _group(head.wish, spec):
                limit = min(limit, task.wish.max_batch or limit)
                if may is None or all(may(one.wish, task.wish) for one in chosen):
                    chosen.append(task)
        size = len(chosen) if self._draw.random() < 0.7 else self._draw.randint(1, len(chosen))
        return chosen[1:size]

    def _spec(self, plan: WorkPlan[Any]) -> LoopSpec:
        return self._instance.card.loops[plan.loop_id]

    def _call(self, tasks: list[_Task]) -> None:
        before = [_digests(task) for task in tasks]
        outcomes = run_call(self._instance, [task.wish for task in tasks]).outcomes
        for task, digests in zip(tasks, before, strict=True):
            if changed := sorted(name for name, one in _digests(task).items() if digests.get(name) != one):
                raise GateError(
                    f"request {task.run.request_id}: {task.wish.where()} wrote into the state that it was given, "
                    f"before the step was committed: {', '.join(changed)}"
                )
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._resume(task, error=outcome)
                continue
            run_id = task.run.request_id
            self._num_committed[run_id] = self._num_committed.get(run_id, 0) + 1
            self._resume(task, outcome)
        for run in {task.run: None for task in tasks}:
            self._between_steps(run)

    def _between_steps(self, run: RequestRun) -> None:
        """Cancel a request whose time has come, or let it go through bytes."""
        if run.request_id in self.outcomes:
            return
        if self._num_committed.get(run.request_id, 0) >= self._cancelled.get(run.request_id, 1 << 30):
            run.cancel.cancel(run.scope, "cancelled by the gate")
            self._end(run, Outcome(error=CancelledError(f"{run.scope.path()}: cancelled by the gate")))
        elif self._is_moved:
            nodes = {name: self._through_bytes(state) for name, state in run.snapshot().items()}
            self._close(run)
            run.lose()
            run.restore({name: state for name, state in nodes.items() if state is not None}, self._instance)
            self._start(run)

    def _through_bytes(self, node: NodeState) -> NodeState | None:
        """Write a node and read it again; None if its results cannot be written, so that it has to run again."""
        spec, device = self._instance.card.loops[node.loop_id], self._instance.device
        if isinstance(node, RunningNode):
            state = decode_state(encode_state(node.state), resolve_ref(spec.state_schema), device=device)
            return RunningNode(node.loop_id, state, node.num_committed)
        if node.outputs is None:
            return node
        if spec.outputs_schema is None:
            return None
        schema = resolve_ref(spec.outputs_schema)
        outputs = decode_state(encode_state(schema(**node.outputs)), schema, device=device)
        return FinishedNode(node.loop_id, {name: getattr(outputs, name) for name in node.outputs})

    def _resume(self, task: _Task, value: Any = None, error: BaseException | None = None) -> None:
        if task not in self._tasks:
            return  # its request has ended meanwhile
        try:
            task.wish = task.coroutine.send(value) if error is None else task.coroutine.throw(error)
        except StopIteration as stop:
            self._tasks.remove(task)
            task.run.finish_node(task.node, stop.value)
            if task.run.is_complete:
                self._end(task.run, Outcome(artifacts=task.run.result().artifacts))
            else:
                self._start(task.run)
        except FastVideoError as failure:
            self._end(task.run, Outcome(error=failure))

    def _end(self, run: RequestRun, outcome: Outcome) -> None:
        self._close(run)
        run.release()
        self.outcomes[run.request_id] = outcome

    def _close(self, run: RequestRun) -> None:
        for task in [task for task in self._tasks if task.run is run]:
            task.coroutine.close()
            self._tasks.remove(task)


def run_alone(instance: ModelInstance, requests: Sequence[PreparedRequest]) -> dict[str, Outcome]:
    """Run requests one after the other, each to its end before the next."""
    outcomes: dict[str, Outcome] = {}
    for request in requests:
        outcomes.update(Pool(instance).run([request]))
    return outcomes


def _drop(_: Any) -> None:
    """Take no notice of an event."""


def _group(wish: Any, spec: LoopSpec) -> BatchKey | None:
    if not isinstance(wish, WorkPlan) or wish.loop_id != spec.loop_id:
        return None
    return wish.batch_key._replace(shape_sig=ShapeSignature(())) if spec.can_batch is not None else wish.batch_key


def _digests(task: _Task) -> dict[str, str]:
    """Return a digest of each field of a loop's state; none for what is no loop in progress."""
    run = task.run.loop_runs.get(task.node.node_id) if isinstance(task.node, ModelLoopNode) else None
    if run is None:
        return {}
    tree = encode_tree(run.state, lambda tensor: {"tensor": _digest(tensor)})
    return {name: hashlib.sha256(repr(node).encode()).hexdigest() for name, node in tree["fields"].items()}


def _digest(tensor: torch.Tensor) -> str:
    plain = host_tensor(tensor).contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
