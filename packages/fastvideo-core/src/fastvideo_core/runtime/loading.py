"""From a card to a resident model: precision and device first, then files, then memory, then weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from fastvideo_core.card import ComponentSpec, ModelCard, resolve_ref
from fastvideo_core.errors import (
    CardError,
    CheckpointError,
    FastVideoError,
    ParameterError,
    ResourceError,
    describe_failure,
)
from fastvideo_core.loop.policies.precision import torch_dtype
from fastvideo_core.loop.samplers import SAMPLERS, Sampler
from fastvideo_core.parallel.threads import release_team
from fastvideo_core.runtime.attention import AttentionBackend
from fastvideo_core.runtime.failures import is_out_of_memory
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.instance import ComponentSource, LoadedComponent, ModelInstance, needed_components
from fastvideo_core.runtime.prepare import check_task
from fastvideo_core.runtime.weights.files import WeightFiles, list_weight_files
from fastvideo_core.runtime.weights.hub import HubAccess
from fastvideo_core.runtime.weights.locate import locate_components
from fastvideo_core.runtime.weights.memory import check_memory
from fastvideo_core.runtime.weights.module import LoadReport, check_module, load_module
from fastvideo_core.runtime.weights.needs import HOST_KINDS, component_bytes, ignored_of, key_map_of
from fastvideo_core.runtime.weights.version import weights_version

__all__ = [
    "LoadedWeights",
    "load_components",
    "load_instance",
    "load_weights",
    "resolve_device",
    "resolve_precision",
]

_LOG = logging.getLogger(__name__)
_ModuleT = TypeVar("_ModuleT", bound=torch.nn.Module)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A module with what was read for it.

    Attributes:
        module: In evaluation mode, on its device, without gradients.
        report: Files, bytes, formats.
        version: Content version of the files.
    """

    module: Any
    report: LoadReport
    version: str

    def as_component(self, config: Any) -> LoadedComponent:
        """Return what a component factory returns."""
        return LoadedComponent(self.module, config, self.report.memory_bytes, self.version, self.report)


def load_instance(
    card: ModelCard,
    *,
    device: str = "auto",
    precision: str | None = None,
    tasks: Sequence[str] | None = None,
    access: HubAccess | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_read: Callable[[LoadReport], None] | None = None,
    loaded: Mapping[str, LoadedComponent] | None = None,
    hooks: InstanceHooks | None = None,
    attention: AttentionBackend | None = None,
    samplers: Mapping[str, Sampler] = SAMPLERS,
) -> ModelInstance:
    """Load a card's components for some tasks.

    Args:
        card: The card.
        device: "auto", "cpu", "cuda" or "cuda:<index>".
        precision: Number format; None takes the card's default for the device.
        tasks: Tasks that will be asked for; None means all.
        access: How the hub is reached.
        on_progress: Told the bytes of a download: done and in all.
        on_read: Told what was read for each component that has weights, as soon as it is there.
        loaded: Components that are there already, by name.
        hooks: Observers and interceptors that are on; None if there are none.
        attention: Attention backend; None for torch's own.
        samplers: Samplers by name.

    Raises:
        UnknownTaskError: The card has no such task.
        LoopMismatchError: A task runs a loop that the weights do not assume.
        PrecisionMismatchError: The weights do not run in that precision.
        CheckpointError: Weights are missing or broken.
        ResourceError: There is no such device, or no room.
    """
    target = resolve_device(device)
    chosen = resolve_precision(card, precision, target)
    wanted = tuple(tasks or card.capabilities.tasks)
    for task in wanted:
        check_task(card, task)
    if attention is not None:
        attention.check(target, chosen)
    there = dict(loaded or {})
    specs = [spec for spec in needed_components(card, wanted) if spec.component_id not in there]
    read = load_components(
        card, specs, target, chosen, access=access, on_progress=on_progress, on_read=on_read, attention=attention
    )

    def reload(names: Sequence[str]) -> dict[str, LoadedComponent]:
        parts = [card.components[name] for name in names]
        return load_components(card, parts, target, chosen, access=access, attention=attention)

    return ModelInstance(
        card, card.model_id, {**there, **read}, precision=chosen, device=target, reload=reload, hooks=hooks,
        samplers=samplers,
    )  # fmt: skip


def load_components(
    card: ModelCard,
    specs: Sequence[ComponentSpec],
    device: torch.device,
    precision: str,
    *,
    access: HubAccess | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_read: Callable[[LoadReport], None] | None = None,
    attention: AttentionBackend | None = None,
) -> dict[str, LoadedComponent]:
    """Load some components of a card, once their files are there and the memory for them is; see `load_instance`."""
    sources = _sources(card, specs, device, precision, access, on_progress)
    if attention is not None:
        sources = [replace(source, attention=attention.function) for source in sources]
    _check_memory(card, sources, precision, device)
    components: dict[str, LoadedComponent] = {}
    for source in sources:
        components[source.spec.component_id] = component = _build(card, source)
        if component.report is not None:
            _LOG.info("%s", component.report)
            if on_read is not None:
                on_read(component.report)
    release_team()  # it has converted numbers, and steps run on another thread
    return components


def load_weights(source: ComponentSource, build: Callable[[], _ModuleT]) -> LoadedWeights:
    """Build a component's module and fill it from its files; for component factories.

    Where `source` asks for a check alone, the module stays without memory and nothing is read but headers.

    Args:
        source: What the factory was given.
        build: Makes the module.

    Raises:
        CheckpointError: A tensor is missing, left over, or of another shape.
    """
    files = weight_files(source)
    if source.is_check:
        key_map, ignored = key_map_of(source.files), ignored_of(source.files)
        checked, report = check_module(build, files, key_map=key_map, ignored=ignored)
        return LoadedWeights(checked, report, "")
    module, report = load_module(
        build,
        files,
        dtype=source.dtype,
        device=source.device,
        key_map=key_map_of(source.files),
        ignored=ignored_of(source.files),
        keep_float32=source.spec.precision_policy.keeps_float32,
    )
    return LoadedWeights(module.requires_grad_(False), report, weights_version(files))


def weight_files(source: ComponentSource) -> WeightFiles:
    """Find and check the weight files of a component."""
    return list_weight_files(source.folder, source.files.folder)


def resolve_device(device: str) -> torch.device:
    """Return the device of a name.

    Raises:
        ParameterError: It is no device's name.
        ResourceError: The machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError:
        target = torch.device("meta")
    if target.type not in ("cpu", "cuda"):
        raise ParameterError("not a device", field="device", value=device, allowed="auto, cpu, cuda, cuda:<index>")
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ResourceError(f"device {device!r} is not there: torch {torch.__version__} finds no CUDA device; use cpu")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ResourceError(f"device {device!r} is not there: this machine has {torch.cuda.device_count()}")
    return target


def resolve_precision(card: ModelCard, precision: str | None, device: torch.device) -> str:
    """Return the number format to run in.

    Raises:
        PrecisionMismatchError: The card or its recipe rules it out.
    """
    chosen = precision or (card.precision.default_cpu if device.type == "cpu" else card.precision.default)
    card.check_precision(chosen)
    return chosen


def _sources(
    card: ModelCard,
    specs: Sequence[ComponentSpec],
    device: torch.device,
    precision: str,
    access: HubAccess | None,
    on_progress: Callable[[int, int], None] | None,
) -> list[ComponentSource]:
    manifest = card.checkpoint
    folders = locate_components(manifest, {spec.load_id for spec in specs}, access=access, on_progress=on_progress)
    return [
        ComponentSource(
            spec=spec,
            files=manifest.components[spec.load_id],
            folder=folders[spec.load_id],
            dtype=torch_dtype(spec.precision_policy.compute or precision),
            device=device,
        )
        for spec in specs
    ]


def _build(card: ModelCard, source: ComponentSource) -> LoadedComponent:
    """Call a component's factory; whatever it raises becomes an error that names the component."""
    name = source.spec.component_id
    try:
        loaded = resolve_ref(source.spec.factory)(source)
    except FastVideoError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ResourceError(f"no memory for {name} of {card.model_id}: {describe_failure(error)}") from error
        raise CheckpointError(f"{name} of {card.model_id} cannot be built: {describe_failure(error)}") from error
    if not isinstance(loaded, LoadedComponent):
        raise CardError(f"{source.spec.factory!r} returned a {type(loaded).__name__}; allowed: a LoadedComponent")
    return loaded


def _check_memory(card: ModelCard, sources: Sequence[ComponentSource], precision: str, device: torch.device) -> None:
    need_bytes = sum(
        component_bytes(source.spec, source.files, weight_files(source), precision)
        for source in sources
        if source.spec.kind not in HOST_KINDS
    )
    check_memory(need_bytes, device=str(device), purpose=f"the weights of {card.model_id}")
