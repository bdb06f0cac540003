"""Changes of resident weights that are taken off again, the exact base restored: stacks of adapters, for instance.

They are made in place, since captured graphs and tied parameters know the memory and not the module. Putting on and
taking off are priced by the cost model, which learns from both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost
from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["PatchTime", "WeightPatch", "WeightPatches", "patch_key"]

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class WeightPatch:
    """A change of a component's weights.

    Attributes:
        version: What the change is called; it becomes part of the weights' version, so that no result of the one is
            taken for one of the other.
        put_on: Changes a module in place and returns what restores it, bit by bit; what it raises leaves the module as
            it was.
        cost: Cost of putting it on.
        undo_cost: Cost of taking it off.
    """

    version: str
    put_on: Callable[[nn.Module], Undo]
    cost: StepCost
    undo_cost: StepCost


@dataclass(frozen=True, slots=True)
class PatchTime:
    """What a change, or its end, took.

    Attributes:
        predicted_s: What the cost model said beforehand.
        seconds: What it was.
    """

    predicted_s: float
    seconds: float


class WeightPatches:
    """The changes that are on; used where steps run, while none does."""

    def __init__(self) -> None:
        self._on: dict[str, tuple[WeightPatch, Undo]] = {}

    def __contains__(self, component_id: str) -> bool:
        return component_id in self._on

    def get(self, component_id: str) -> WeightPatch:
        """Return the change that is on a component.

        Raises:
            ParameterError: None is.
        """
        if component_id not in self._on:
            raise ParameterError(
                "no change is on it", field="component", value=component_id, allowed=", ".join(self._on) or "none"
            )
        return self._on[component_id][0]

    def put_on(self, instance: ModelInstance, component_id: str, patch: WeightPatch) -> float:
        """Change a component; return the seconds that it took.

        Raises:
            ParameterError: A change is on it already.
            CheckpointError: The component is not loaded, or the change does not fit it.
        """
        if component_id in self._on:
            raise ParameterError(
                "a change is on it already", field="component", value=component_id,
                allowed="one change at a time; stack what belongs together in one",
            )  # fmt: skip
        module = instance.component(component_id)
        started = time.perf_counter()
        with torch.no_grad():
            undo = patch.put_on(module)
        _finish(instance)
        self._on[component_id] = (patch, undo)
        instance.note_patch(component_id, patch.version)
        return time.perf_counter() - started

    def take_off(self, instance: ModelInstance, component_id: str) -> float:
        """Restore a component; return the seconds that it took."""
        _, undo = self._on.pop(component_id)
        started = time.perf_counter()
        with torch.no_grad():
            undo()
        _finish(instance)
        instance.note_patch(component_id, None)
        return time.perf_counter() - started

    def put_on_again(self, instance: ModelInstance) -> None:
        """Change the components of a model that was loaded anew as those before it were."""
        before, self._on = self._on, {}
        for component_id, (patch, _) in before.items():
            self.put_on(instance, component_id, patch)


def patch_key(instance: ModelInstance, component_id: str, kind: Literal["weight_patch", "weight_unpatch"]) -> BatchKey:
    """Return the batch key under which the cost model knows changes of a component."""
    return BatchKey(instance.instance_id, component_id, kind, ShapeSignature.of(), instance.precision)


def _finish(instance: ModelInstance) -> None:
    if instance.device.type == "cuda":
        torch.cuda.synchronize(instance.device)
