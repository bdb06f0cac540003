"""What interceptors keep in a request's state, against what they and the family say: requests are admitted by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastvideo_core.cache import tensors_in
from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.extend import InterceptorSpec
from fastvideo_core.loop.base import BranchEstimate, LoopEstimate
from fastvideo_core.loop.hooks import BlockCall, BlockOutcome, HookLevel, StepCall, hook_levels
from fastvideo_core.loop.state import PluginState
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.runtime.estimate import estimate_node
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_testing.contract.base import ContractError, guided, load, make_requests
from fastvideo_testing.gate.pool import Pool
from fastvideo_testing.samples import extensions_of

__all__ = ["Measured", "check_branches", "check_kept", "measure_branches"]

_HERE = "fastvideo_testing.contract.kept"


@dataclass(slots=True)
class Measured:
    """What an interceptor meets in one loop.

    Attributes:
        branches: Guidance branches.
        components: Models that take turns.
        num_bytes: Most bytes of one branch's prediction, or of its stream.
    """

    branches: set[str] = field(default_factory=set)
    components: set[str] = field(default_factory=set)
    num_bytes: int = 0

    def note(self, component: str, branches: Sequence[str], num_bytes: int) -> None:
        """Take note of a meeting."""
        self.branches.update(branches)
        self.components.add(component)
        self.num_bytes = max(self.num_bytes, num_bytes)


class StepProbe:
    """Lets the model compute, and notes what it predicts, by loop."""

    def __init__(self, options: None) -> None:
        self.seen: dict[str, Measured] = {}

    def answer(self, call: StepCall, states: Mapping[str, PluginState]) -> None:
        """Answer nothing."""

    def record(
        self, call: StepCall, states: Mapping[str, PluginState], prediction: torch.Tensor, *, is_computed: bool
    ) -> Mapping[str, PluginState]:
        """Note the prediction."""
        one = self.seen.setdefault(call.step.loop_id, Measured())
        one.note(call.wanted.component, call.wanted.branches, prediction.nbytes // len(call.wanted.branches))
        return {}


class BlockProbe:
    """Runs blocks, and notes their streams, by loop."""

    def __init__(self, options: None) -> None:
        self.seen: dict[str, Measured] = {}

    def run_blocks(
        self, call: BlockCall, state: PluginState | None, blocks: Sequence[Any], hidden: torch.Tensor, *inputs: Any
    ) -> BlockOutcome:
        """Run the blocks."""
        one = self.seen.setdefault(call.step.loop_id, Measured())
        for block in blocks:
            hidden = block(hidden, *inputs)
            one.note(call.component, [call.branch], hidden.nbytes)
        return BlockOutcome(hidden, None)


_PROBES: Mapping[HookLevel, InterceptorSpec] = {
    "step": InterceptorSpec("probe", f"{_HERE}:StepProbe", level="step", distribution_altering=False),
    "block": InterceptorSpec("probe", f"{_HERE}:BlockProbe", level="block", distribution_altering=False, max_batch=1),
}


def measure_branches(card: ModelCard, request: PreparedRequest, level: HookLevel) -> dict[str, Measured]:
    """Return what an interceptor of a level meets in a request, by loop."""
    hooks = InstanceHooks(extensions_of(_PROBES[level]), card)
    outcome = Pool(load(card, hooks)).run([request])[request.request.request_id]
    if outcome.error is not None:
        raise ContractError(f"a request with an interceptor that does nothing fails: {outcome.error}")
    seen: dict[str, Measured] = hooks.interceptors["probe"].seen
    return seen


def check_kept(
    spec: InterceptorSpec,
    card: ModelCard,
    request: PreparedRequest,
    options: Any,
    seen: Sequence[Mapping[str, PluginState]],
) -> None:
    """States keep no more than the description says.

    Args:
        spec: The description.
        card: The card that ran.
        request: The request that ran.
        options: The interceptor's options for it.
        seen: States by component and branch, after each step.
    """
    hooks = InstanceHooks(extensions_of(spec), card)
    level = spec.level
    for loop_id, measured in measure_branches(card, request, level).items():
        run_hooks = hooks.run_hooks(loop_id, {spec.name: options})
        if run_hooks is None:
            continue
        number = run_hooks.num_kept[level]
        for states in seen:
            for key, state in states.items():
                kept = _num_bytes(state)
                if kept > number * measured.num_bytes:
                    raise ContractError(
                        f"{spec.name}: the state of {key} keeps {kept} bytes; it declares {number:g} tensors of "
                        f"{measured.num_bytes} bytes each"
                    )


def check_branches(card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """The estimates of loops that let interceptors in say what these will meet, or more."""
    (request,) = make_requests(card, {**parameters, **guided(card)}, 1)
    view = load(card).view
    nodes = [node for node in request.nodes if isinstance(node, ModelLoopNode)]
    for level in ("step", "block"):
        able = [node for node in nodes if level in hook_levels(resolve_ref(card.loops[node.loop].step))]
        stated = {node.loop: estimate_node(node, request, view) for node in able if card.loops[node.loop].estimate}
        if not stated:
            continue
        for loop_id, measured in measure_branches(card, request, level).items():
            if loop_id in stated:
                _compare(f"loop {loop_id} of {card.model_id}", level, stated[loop_id], measured)


def _compare(where: str, level: str, stated: LoopEstimate, measured: Measured) -> None:
    if stated.branches is None:
        raise ContractError(f"{where} lets interceptors in, and its estimate does not say what its branches are like")
    one: BranchEstimate = stated.branches
    found = {
        "num_branches": (one.num_branches, len(measured.branches)),
        "num_components": (one.num_components, len(measured.components)),
        "prediction_bytes" if level == "step" else "stream_bytes": (
            one.prediction_bytes if level == "step" else one.stream_bytes,
            measured.num_bytes,
        ),
    }
    for name, (said, seen) in found.items():
        if said < seen:
            raise ContractError(f"{where}: its estimate says {name} {said}; {seen} were met")


def _num_bytes(state: PluginState) -> int:
    """Return the bytes that a state's tensors keep alive, each memory once."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors_in(state)}
    return sum(storages.values())
