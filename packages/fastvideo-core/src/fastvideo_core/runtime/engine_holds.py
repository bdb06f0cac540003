"""What an engine does between steps, while it is held: components sleep and wake, and weights are replaced."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from fastvideo_core.cache import CachePools
from fastvideo_core.cost import CostModel
from fastvideo_core.errors import ExecutionError, ParameterError
from fastvideo_core.runtime.compile_cache import CompileCache
from fastvideo_core.runtime.control import ControlPlane
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.new_weights import NewWeights, digest_version
from fastvideo_core.runtime.patches import PatchTime, WeightPatch, WeightPatches, patch_key
from fastvideo_core.runtime.sleep import SleepMode

if TYPE_CHECKING:
    import torch

__all__ = ["HeldEngine", "UpdateMode"]

UpdateMode = Literal["drain", "restart"]
"""What becomes of requests that are half-way when weights change: they are waited for, or run anew from their
beginning."""


class HeldEngine:
    """The part of an engine that holds it. All methods may be called from any thread, but not in an event's callback.

    Attributes:
        caches: The card's caches.
        costs: What steps take.
    """

    caches: CachePools
    costs: CostModel
    _control: ControlPlane
    _compiler: CompileCache
    _patches: WeightPatches

    @property
    @abstractmethod
    def instance(self) -> ModelInstance:
        """The resident model."""

    def sleep(self, components: Sequence[str], mode: SleepMode | None = None) -> int:
        """Take components' weights off the device between two steps; see `ModelInstance.sleep`.

        Requests that need them are refused until they are woken, and those in progress end with an error.

        Raises:
            ParameterError: A component has no weights or is not there, or the mode makes no sense here.
        """
        instance = self.instance

        def sleep() -> int:
            self._compiler.forget(components)
            return instance.sleep(components, mode)

        return self._control.exclusively(sleep)

    def wake(self, components: Sequence[str] | None = None) -> int:
        """Bring components' weights back, to the bit as they were; None wakes all. See `ModelInstance.wake`."""
        instance = self.instance
        return self._control.exclusively(lambda: instance.wake(components))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Begin no step while the context is open; those in progress end first. Requests are accepted meanwhile."""
        self._control.pause()
        try:
            yield
        finally:
            self._control.go_on()

    @contextmanager
    def frozen(self, mode: UpdateMode = "drain") -> Iterator[None]:
        """Start no request while the context is open, and have none half-way. Requests are accepted meanwhile.

        Args:
            mode: "drain" waits for those that have started; "restart" stops them at their next step boundary, and runs
                them anew from their beginning when the context closes. Sessions are waited for in either case.

        Raises:
            ParameterError: It is no such mode.
            ExecutionError: It is entered in an event's callback, where it would wait for itself.
        """
        if mode not in ("drain", "restart"):
            raise ParameterError("no such mode", field="mode", value=mode, allowed="drain, restart")
        if self._control.is_own_thread:
            raise ExecutionError("an event's callback cannot freeze the engine that calls it; freeze it elsewhere")
        self._control.freeze(restart=mode == "restart")
        try:
            yield
        finally:
            self._control.thaw()

    def stage_weights(
        self, component_id: str, tensors: Mapping[str, torch.Tensor], *, version: str | None = None
    ) -> NewWeights:
        """Check new weights of a component and bring them to its device, while everything goes on.

        Args:
            component_id: The component.
            tensors: All of its parameters, and any buffers, by name; in any number format and on any device.
            version: What they are called; None takes a digest of their values.

        Raises:
            CheckpointError: They do not fit the component, or hold NaN or infinity; or it is not loaded.
        """
        named = digest_version(tensors) if version is None else version
        return NewWeights.stage(component_id, self.instance.component(component_id), tensors, named)

    def update_weights(self, new: NewWeights, *, mode: UpdateMode = "drain") -> None:
        """Replace a component's weights: no request ever runs with some steps of the one and some of the other.

        Admission is frozen, what is half-way ends or begins anew (see `frozen`), the weights are copied in place, what
        caches hold of the old ones is dropped, and admission goes on. If the copying fails, the old weights and their
        version are there as before.
        """
        instance = self.instance
        with self.frozen(mode):
            before = self._control.exclusively(lambda: instance.put_weights(new))
            self._control.call(lambda: self.caches.invalidate(instance.card.model_id, weights_version=before))

    def patch_weights(self, component_id: str, patch: WeightPatch) -> PatchTime:
        """Change a component's weights until `unpatch_weights`, while no request is half-way.

        Requests that start from then on run on what is changed. If the device is lost, the change is made again.

        Args:
            component_id: The component.
            patch: The change.

        Raises:
            ParameterError: A change is on it already.
            CheckpointError: The component is not loaded, or the change does not fit it.
        """
        instance = self.instance
        key = patch_key(instance, component_id, "weight_patch")
        with self.frozen():
            predicted_s = self._control.call(lambda: self.costs.predict(key, patch.cost))
            seconds = self._control.exclusively(lambda: self._patches.put_on(instance, component_id, patch))
            self._control.call(lambda: self.costs.observe(key, patch.cost, 1, seconds))
        return PatchTime(predicted_s, seconds)

    def unpatch_weights(self, component_id: str) -> PatchTime:
        """Restore a component's weights, bit by bit, while no request is half-way.

        Raises:
            ParameterError: No change is on it.
        """
        instance = self.instance
        patch, key = self._patches.get(component_id), patch_key(instance, component_id, "weight_unpatch")
        with self.frozen():
            before = instance.weights_version
            predicted_s = self._control.call(lambda: self.costs.predict(key, patch.undo_cost))
            seconds = self._control.exclusively(lambda: self._patches.take_off(instance, component_id))
            self._control.call(lambda: self.costs.observe(key, patch.undo_cost, 1, seconds))
            self._control.call(lambda: self.caches.invalidate(instance.card.model_id, weights_version=before))
        return PatchTime(predicted_s, seconds)
