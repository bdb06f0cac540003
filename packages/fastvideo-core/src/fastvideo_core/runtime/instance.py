"""A resident model: the loaded components of a card, its loops and its step bodies."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ComponentFiles, ComponentSpec, LoopSpec, ModelCard, resolve_ref
from fastvideo_core.errors import (
    CardError,
    CheckpointError,
    ComponentAsleepError,
    FastVideoError,
    ParameterError,
    describe_failure,
)
from fastvideo_core.loop.base import Loop, StepBody
from fastvideo_core.loop.samplers import SAMPLERS, Sampler
from fastvideo_core.runtime.attention import AttentionFunction
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.new_weights import NewWeights
from fastvideo_core.runtime.sleep import (
    Reload,
    SleepingComponent,
    SleepMode,
    choose_mode,
    let_go,
    put_to_sleep,
    wake_all,
)
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
        is_check: Whether the files' names and shapes are only compared with the module's, and no tensor is read.
        attention: What computes attention in place of torch's own, for factories marked `takes_attention`.
    """

    spec: ComponentSpec
    files: ComponentFiles
    folder: Path
    dtype: torch.dtype
    device: torch.device
    is_check: bool = False
    attention: AttentionFunction | None = None


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
        samplers: Samplers by name.
    """

    def __init__(
        self,
        card: ModelCard,
        instance_id: str,
        components: Mapping[str, LoadedComponent],
        *,
        precision: str,
        weights_version: str,
        samplers: Mapping[str, Sampler] = SAMPLERS,
    ) -> None:
        self.card = card
        self.samplers = samplers
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
        reload: Loads components anew, so that their weights can be dropped for a while; None rules that out.
        hooks: Observers and interceptors; None if there are none.
        samplers: Samplers by name.

    Attributes:
        view: What the loops see of it.
        loops: Loops whose components are loaded, by name.
        steps: Their step bodies, with the hooks that are on.
        hooks: See above.
    """

    def __init__(
        self,
        card: ModelCard,
        instance_id: str,
        components: Mapping[str, LoadedComponent],
        *,
        precision: str,
        device: torch.device,
        reload: Reload | None = None,
        hooks: InstanceHooks | None = None,
        samplers: Mapping[str, Sampler] = SAMPLERS,
    ) -> None:
        self.card = card
        self.samplers = samplers
        self.instance_id = instance_id
        self.precision = precision
        self.device = device
        self._components = dict(components)
        self._asleep: dict[str, SleepingComponent] = {}
        self._patches: dict[str, str] = {}
        self._reload = reload
        self.hooks = hooks
        version = _joint_version(components)
        self.view = InstanceView(
            card, instance_id, components, precision=precision, weights_version=version, samplers=samplers
        )
        self.loops: dict[str, Loop[Any]] = {}
        self.steps: dict[str, StepBody] = {}
        for loop_id, spec in card.loops.items():
            if set(spec.components) <= set(components):
                self.loops[loop_id] = _make_loop(spec, self.view)
                body = resolve_ref(spec.step)
                self.steps[loop_id] = body if hooks is None else hooks.wrap(loop_id, body)

    def config(self, component_id: str) -> Any:
        """Return the configuration of a component."""
        return self._component(component_id).config

    def component(self, component_id: str) -> Any:
        """Return a component.

        Raises:
            ComponentAsleepError: Its weights are not here now.
            CheckpointError: It was not loaded.
        """
        if component_id in self._asleep:
            raise ComponentAsleepError(f"a step of {self.card.model_id} needs its weights", components=(component_id,))
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
        """Bytes of weights on the device."""
        return sum(part.num_bytes for name, part in self._components.items() if name not in self._asleep)

    @property
    def asleep(self) -> dict[str, int]:
        """Components that sleep, with the bytes that they gave back."""
        return {name: bed.num_bytes for name, bed in self._asleep.items()}

    def sleep(self, components: Iterable[str], mode: SleepMode | None = None) -> int:
        """Take components' weights off the device until they are woken; called between steps, where steps run.

        Loops that need them are refused meanwhile, and so are their steps. What sleeps already goes on sleeping.

        Args:
            components: Their names.
            mode: "drop" reads them from the checkpoint again when they wake; "host" keeps them in pinned host memory,
                changes since loading included; None takes "host", and on a CPU "drop".

        Returns:
            Bytes that are free now.

        Raises:
            ParameterError: A component has no weights or is not there, or the mode makes no sense here.
        """
        names = [name for name in dict.fromkeys(components) if name not in self._asleep]
        chosen = choose_mode(mode, self.device)
        for name in names:
            self._check_can_sleep(name, chosen)
        before = self.num_bytes
        for name in names:
            part = self._components[name]
            module = weakref.ref(part.component)
            self._asleep[name] = put_to_sleep(part, chosen)
            self._components[name] = self._asleep[name].part
            del part
            let_go(module, self.device)
        return before - self.num_bytes

    def wake(self, components: Iterable[str] | None = None) -> int:
        """Bring components' weights back, all or none, to the bit as they were; what is awake stays so.

        Args:
            components: Their names; None wakes all that sleep.

        Returns:
            Bytes that are in use again.

        Raises:
            ParameterError: There is no such component.
            CheckpointError: The checkpoint has changed, or cannot be read.
            ResourceError: There is no room for them.
        """
        names = list(dict.fromkeys(self._asleep if components is None else components))
        for name in names:
            self._check_known(name)
        beds = {name: self._asleep[name] for name in names if name in self._asleep}
        assert self._reload is not None or all(bed.module is not None for bed in beds.values())
        before = self.num_bytes
        woken = wake_all(beds, self._reload or (lambda _: {}), self.device)
        self._components.update(woken)
        for name in beds:
            del self._asleep[name]
        return self.num_bytes - before

    def put_weights(self, new: NewWeights) -> str:
        """Give a component new weights; called between steps, where steps run, and while no request is half-way.

        Returns:
            The content version of all weights that was there before.

        Raises:
            CheckpointError: The component is not loaded.
            ComponentAsleepError: It sleeps.
        """
        module = self.component(new.component_id)
        self._check_plain(new.component_id)
        new.put(module)
        before = self.view.weights_version
        part = self._components[new.component_id]
        self._components[new.component_id] = replace(part, weights_version=new.version)
        self._name_weights()
        return before

    def note_patch(self, component_id: str, version: str | None) -> None:
        """Note that a component's weights are changed in place for a while, under a name; None that they are not.

        The name is part of the weights' version meanwhile; the component's own content version stays.
        """
        if version is None:
            self._patches.pop(component_id, None)
        else:
            self._patches[component_id] = version
        self._name_weights()

    def _name_weights(self) -> None:
        names = [_joint_version(self._components), *(f"{name}~{one}" for name, one in sorted(self._patches.items()))]
        self.view.weights_version = "+".join(filter(None, names))

    def _check_plain(self, name: str) -> None:
        if name in self._patches:
            raise ParameterError(
                f"its weights are changed for a while ({self._patches[name]})", field="components", value=name,
                allowed="a component without a patch",
            )  # fmt: skip

    def loop(self, loop_id: str) -> Loop[Any]:
        """Return a loop of the card.

        Raises:
            CheckpointError: Components that the loop needs were not loaded.
            ComponentAsleepError: They sleep.
        """
        spec: LoopSpec = self.card.loops[loop_id]
        if asleep := tuple(name for name in spec.components if name in self._asleep):
            raise ComponentAsleepError(f"loop {loop_id} of {self.card.model_id} needs its weights", components=asleep)
        if loop_id in self.loops:
            return self.loops[loop_id]
        missing = sorted(set(spec.components) - set(self._components))
        raise CheckpointError(
            f"loop {loop_id} of {self.card.model_id} needs components that are not loaded: {', '.join(missing)}; "
            "open the engine with a task that needs them"
        )

    def _check_known(self, name: str) -> None:
        if name not in self._components:
            allowed = ", ".join(part for part in self._components if not _is_host(self.card, part))
            raise ParameterError("no such component is loaded", field="components", value=name, allowed=allowed)

    def _check_can_sleep(self, name: str, mode: SleepMode) -> None:
        self._check_known(name)
        self._check_plain(name)
        if not isinstance(self._components[name].component, torch.nn.Module):
            raise ParameterError("has no weights that could sleep", field="components", value=name)
        if mode == "drop" and self._reload is None:
            raise ParameterError(
                "cannot be dropped: this instance was not loaded from a checkpoint", field="components", value=name
            )

    def _component(self, component_id: str) -> LoadedComponent:
        if component_id in self._components:
            return self._components[component_id]
        raise _not_loaded(self.card, component_id, self._components)


def _joint_version(components: Mapping[str, LoadedComponent]) -> str:
    return "+".join(part.weights_version for part in components.values() if part.weights_version)


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
