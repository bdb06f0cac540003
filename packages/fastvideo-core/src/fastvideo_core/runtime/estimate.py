"""What a whole request will need, before it starts: bytes at the worst, and predicted device-seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fastvideo_core.card import resolve_ref
from fastvideo_core.loop.base import LoopEstimate, LoopEstimator, ModelView
from fastvideo_core.loop.hooks import RunHooks
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.prepare import PreparedRequest, known_inputs
from fastvideo_core.runtime.pricing import Pricing

__all__ = ["HooksOf", "NodeEstimate", "RequestEstimate", "estimate_node", "estimate_request", "plugin_bytes"]

HooksOf = Callable[[str], RunHooks | None]
"""Given a loop, returns what the plans of a request carry there for interceptors; None if nothing."""


@dataclass(frozen=True, slots=True)
class NodeEstimate:
    """What one loop of a request will need at the most.

    Attributes:
        seconds: Predicted device-seconds of all its steps.
        num_steps: Its steps.
        cache_blocks: Blocks of each cache.
    """

    seconds: float
    num_steps: int
    cache_blocks: Mapping[str, int]

    def unused(self, num_made: int) -> tuple[float, dict[str, int]]:
        """Return the seconds, and the whole blocks, that a loop does not take which ends after some steps."""
        if num_made >= self.num_steps:
            return 0.0, {}
        share = 1 - num_made / self.num_steps
        return share * self.seconds, {name: int(share * count) for name, count in self.cache_blocks.items()}


@dataclass(frozen=True, slots=True)
class RequestEstimate:
    """What a request will need.

    Attributes:
        resident_bytes: Most bytes between two steps: of the loops that run at a time, and of the results kept by then.
        peak_bytes: Most bytes that one step, alone in its call, takes on top.
        cache_blocks: Most blocks of each cache.
        chunk_blocks: Blocks of each cache that one more chunk of a stream's past takes.
        seconds: Predicted device-seconds of all steps, each alone in its call.
        num_steps: Steps in all; zero where nothing is known.
        nodes: What each loop takes of that, by node.
    """

    resident_bytes: int = 0
    peak_bytes: int = 0
    cache_blocks: Mapping[str, int] = field(default_factory=dict)
    chunk_blocks: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    num_steps: int = 0
    nodes: Mapping[str, NodeEstimate] = field(default_factory=dict)


def estimate_request(
    prepared: PreparedRequest, view: ModelView, pricing: Pricing, hooks_of: HooksOf = lambda _: None
) -> RequestEstimate:
    """Add up what the loops of a request say, and what interceptors keep in their states.

    Nodes of one depth may run side by side, and all results stay to the end.

    Args:
        prepared: The request.
        view: The model.
        pricing: Prices steps.
        hooks_of: Tells what the request's plans carry for interceptors.

    Raises:
        InputError: A loop refuses the request.
        ExecutionError: A loop's estimate fails.
    """
    loops = {
        node.node_id: estimate_node(node, prepared, view) for node in prepared.nodes if isinstance(node, ModelLoopNode)
    }
    is_rollout = prepared.request.outputs.capture_behavior
    if is_rollout:
        loops = {node_id: _as_rollout(loop) for node_id, loop in loops.items()}
    depths = _depths(prepared)
    resident: dict[int, int] = {}
    blocks: Counter[str] = Counter()
    chunk_blocks: Counter[str] = Counter()
    hooks = {node.node_id: hooks_of(node.loop) for node in prepared.nodes if isinstance(node, ModelLoopNode)}
    for node_id, loop in loops.items():
        own = loop.resident_bytes + plugin_bytes(loop, hooks[node_id])
        resident[depths[node_id]] = resident.get(depths[node_id], 0) + own
        blocks.update(loop.cache_blocks)
        chunk_blocks.update(loop.chunk_blocks)
    kept = sum(loop.result_bytes + is_rollout * loop.behavior_bytes for loop in loops.values())
    nodes = {name: _node(loop, pricing, hooks[name]) for name, loop in loops.items()}
    return RequestEstimate(
        resident_bytes=kept + max(resident.values(), default=0),
        peak_bytes=max((loop.peak_bytes for loop in loops.values()), default=0),
        cache_blocks=blocks,
        chunk_blocks=chunk_blocks,
        seconds=sum(node.seconds for node in nodes.values()),
        num_steps=sum(node.num_steps for node in nodes.values()),
        nodes=nodes,
    )


def plugin_bytes(loop: LoopEstimate, hooks: RunHooks | None) -> int:
    """Return the most bytes that interceptors keep in the state of a loop.

    Each component that takes its turn has states of its own; those that a step makes stand beside the ones before it
    until it is committed.

    Args:
        loop: What the loop says.
        hooks: What its plans carry; None if no interceptor stands at it.
    """
    if hooks is None or loop.branches is None:
        return 0
    one = loop.branches
    sizes = {"step": one.prediction_bytes, "block": one.stream_bytes}
    kept = sum(number * sizes[level] for level, number in hooks.num_kept.items())
    return math.ceil(one.num_branches * (one.num_components + 1) * kept)


def _as_rollout(loop: LoopEstimate) -> LoopEstimate:
    """Return what a loop needs of caches where its steps are recorded."""
    return replace(loop, cache_blocks=Counter(loop.cache_blocks) + Counter(loop.behavior_blocks))


def _node(loop: LoopEstimate, pricing: Pricing, hooks: RunHooks | None) -> NodeEstimate:
    seconds = sum(step.num_steps * pricing.kind_s(step, hooks) for step in loop.steps)
    return NodeEstimate(seconds, sum(step.num_steps for step in loop.steps), loop.cache_blocks)


def estimate_node(node: ModelLoopNode, prepared: PreparedRequest, view: ModelView) -> LoopEstimate:
    """Return what the loop of a node says that it will need; nothing of one that says nothing, or will not run.

    Raises:
        InputError: The loop refuses the request.
        ExecutionError: Its estimate fails.
    """
    spec = prepared.card.loops[node.loop]
    is_skipped = node.requires_input is not None and prepared.inputs.get(node.requires_input) is None
    if spec.estimate is None or is_skipped:
        return LoopEstimate(())
    estimator: LoopEstimator = resolve_ref(spec.estimate)
    inputs = known_inputs(node, prepared.inputs)
    parameters = prepared.parameters_of(node.node_id)
    try:
        return estimator(spec, view, parameters, inputs, exact=prepared.request.exact)
    except Exception as error:
        failure = as_failure(error, f"the estimate of loop {node.loop}")
        if failure is error:
            raise
        raise failure from error


def _depths(prepared: PreparedRequest) -> dict[str, int]:
    """Return how many nodes lie before each one; sources come first in a prepared request."""
    depths: dict[str, int] = {}
    for node in prepared.nodes:
        sources = [edge.node for edge in node.tensor_edges()]
        depths[node.node_id] = 1 + max((depths[source] for source in sources), default=0)
    return depths
