"""A resident model: the loaded components of a card, its loops and its step bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ComponentFiles, ComponentSpec, LoopSpec, ModelCard, resolve_ref
from fastvideo_core.errors import CardError, CheckpointError, FastVideoError, describe_failure
from fastvideo_core.loop.base import Loop, StepBody
from fastvideo_core.runtime.weights.module import LoadReport
from fastvideo_core.runtime.weights.needs import HOST_KINDS

__all__ = ["ComponentSource", "InstanceView", "LoadedComponent", "ModelInstance", "needed_components"]


@dataclass(frozen=True, slots=True)
class ComponentSource:
    """What a component factory builds from.

    Attributes:
        spec: The component.
        files: Its files in the manifest.
        folder: Local folder that holds them.
        dtype: Number format to load into.
        device: Where to put it.
    """

    spec: ComponentSpec
    files: ComponentFiles
    folder: Path
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class LoadedComponent:
    """What a component factory returns.

    Attributes:
        component: The module, tokenizer or processor.
        config: Its validated configuration.
        num_bytes: Bytes of weights in memory.
        weights_version: Content version of its files; "" where it has no weights.
        report: What was read for it; None where it has no weights, or its factory does not say.
    """

    component: Any
    config: Any
    num_bytes: int = 0
    weights_version: str = ""
    report: LoadReport | None = None


def needed_components(card: ModelCard, tasks: Iterable[str]) -> tuple[ComponentSpec, ...]:
    """Return the components that some tasks need, in the card's order."""
    wanted = tuple(tasks)
    return tuple(spec for spec in card.components.values() if any(spec.is_needed_for(task) for task in wanted))


class InstanceView:
    """What loops see of a resident model: identities, configurations, tokenizers; no weights, and not the model itself.

    So a loop keeps no weights alive, and the step bodies alone touch them.

    Args:
        card: The card.
        instance_id: Name in plans and caches.
        components: Loaded components by name.
        precision: Number format.
        weights_version: Content version of all weights.
    """

    def __init__(
        self,
        card: ModelCard,
        instance_id: str,
        components: Mapping[str, LoadedComponent],
        *,
        precision: str,
        weights_version: str,
    ) -> None:
        self.card = card
        self.instance_id = instance_id
        self.precision = precision
        self.weights_version = weights_version
        self._configs = {name: part.config for name, part in components.items()}
        self._host = {name: part.component for name, part in components.items() if _is_host(card, name)}

    def config(self, component_id: str) -> Any:
        """Return the configuration of a component."""
        if component_id in self._configs:
            return self._configs[component_id]
        raise _not_loaded(self.card, component_id, self._configs)

    def component(self, component_id: str) -> Any:
        """Return a component that has no weights.

        Raises:
            CardError: It has weights, which are for step bodies.
            CheckpointError: It is not loaded.
        """
        if component_id in self._host:
            return self._host[component_id]
        if component_id in self._configs:
            raise CardError(f"a loop asks for {component_id!r} of {self.card.model_id}; weights are for step bodies")
        raise _not_loaded(self.card, component_id, self._configs)


class ModelInstance:
    """A card that is loaded: weights, configurations, loops, step bodies. Nothing of any request is kept here.

    Args:
        card: The card.
        instance_id: Name in plans and caches.
        components: Loaded components by name.
        precision: Number format.
        device: Where the weights are.

    Attributes:
        view: What the loops see of it.
        loops: Loops whose components are loaded, by name.
        steps: Their step bodies.
    """

    def __init__(
        self,
        card: ModelCard,
        instance_id: str,
        components: Mapping[str, LoadedComponent],
        *,
        precision: str,
        device: torch.device,
    ) -> None:
        self.card = card
        self.instance_id = instance_id
        self.precision = precision
        self.device = device
        self._components = dict(components)
        version = "+".join(part.weights_version for part in components.values() if part.weights_version)
        self.view = InstanceView(card, instance_id, components, precision=precision, weights_version=version)
        self.loops: dict[str, Loop[Any]] = {}
        self.steps: dict[str, StepBody] = {}
        for loop_id, spec in card.loops.items():
            if set(spec.components) <= set(components):
                self.loops[loop_id] = _make_loop(spec, self.view)
                self.steps[loop_id] = resolve_ref(spec.step)

    def config(self, component_id: str) -> Any:
        """Return the configuration of a component."""
        return self._component(component_id).config

    def component(self, component_id: str) -> Any:
        """Return a component."""
        return self._component(component_id).component

    def has_component(self, component_id: str) -> bool:
        """Tell whether a component is loaded."""
        return component_id in self._components

    @property
    def weights_version(self) -> str:
        """Content version of all weights; the loops' plans carry it."""
        return self.view.weights_version

    @property
    def weights_versions(self) -> dict[str, str]:
        """Content versions of the weights, by component; those without weights are left out."""
        return {name: part.weights_version for name, part in self._components.items() if part.weights_version}

    @property
    def num_bytes(self) -> int:
        """Bytes of weights in memory."""
        return sum(part.num_bytes for part in self._components.values())

    def loop(self, loop_id: str) -> Loop[Any]:
        """Return a loop of the card.

        Raises:
            CheckpointError: Components that the loop needs were not loaded.
        """
        if loop_id in self.loops:
            return self.loops[loop_id]
        spec: LoopSpec = self.card.loops[loop_id]
        missing = sorted(set(spec.components) - set(self._components))
        raise CheckpointError(
            f"loop {loop_id} of {self.card.model_id} needs components that are not loaded: {', '.join(missing)}; "
            "open the engine with a task that needs them"
        )

    def _component(self, component_id: str) -> LoadedComponent:
        if component_id in self._components:
            return self._components[component_id]
        raise _not_loaded(self.card, component_id, self._components)


def _make_loop(spec: LoopSpec, view: InstanceView) -> Loop[Any]:
    make = resolve_ref(spec.loop)
    try:
        loop: Loop[Any] = make(spec, view)
    except FastVideoError:
        raise
    except Exception as error:
        raise CardError(f"loop {spec.loop_id} of {view.card.model_id}: {describe_failure(error)}") from error
    return loop


def _is_host(card: ModelCard, component_id: str) -> bool:
    return component_id in card.components and card.components[component_id].kind in HOST_KINDS


def _not_loaded(card: ModelCard, component_id: str, loaded: Iterable[str]) -> CheckpointError:
    return CheckpointError(f"component {component_id!r} of {card.model_id} is not loaded; loaded: {', '.join(loaded)}")
