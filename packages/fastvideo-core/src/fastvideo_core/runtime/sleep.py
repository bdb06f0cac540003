"""Sleep and wake of components: their weights leave the device while nothing needs them, and come back the same.

Dropped weights are read again from the checkpoint, bit for bit what they were; weights that training has changed in
place would be lost, so those are kept in host memory instead.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from fastvideo_core.errors import CheckpointError, ParameterError

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import LoadedComponent

__all__ = ["Reload", "SleepMode", "SleepingComponent", "choose_mode", "let_go", "put_to_sleep", "wake_all"]

SleepMode = Literal["drop", "host"]
"""`drop` forgets the weights, to be read again; `host` keeps them in pinned host memory."""

Reload = Callable[[Sequence[str]], Mapping[str, "LoadedComponent"]]
"""Loads components anew, by name, as they were loaded first."""


@dataclass(frozen=True, slots=True)
class SleepingComponent:
    """A component without its weights on the device.

    Attributes:
        part: The component; of a dropped one only configuration and versions.
        module: Its module with the weights in host memory; None if they were dropped.
        num_bytes: Bytes that it gave back on the device.
    """

    part: LoadedComponent
    module: nn.Module | None
    num_bytes: int


def choose_mode(mode: SleepMode | None, device: torch.device) -> SleepMode:
    """Return where weights go: host memory, but from a CPU, where they are in it, nowhere.

    Raises:
        ParameterError: It is no such mode, or makes no sense on the device.
    """
    if mode is None:
        return "drop" if device.type == "cpu" else "host"
    if mode not in ("drop", "host"):
        raise ParameterError("no such mode", field="mode", value=mode, allowed="drop, host")
    if mode == "host" and device.type == "cpu":
        raise ParameterError("the weights are in host memory", field="mode", value=mode, allowed="drop on a CPU")
    return mode


def put_to_sleep(part: LoadedComponent, mode: SleepMode) -> SleepingComponent:
    """Take a component's weights off the device; the caller lets go of `part` then."""
    if mode == "drop":
        return SleepingComponent(replace(part, component=None), None, part.num_bytes)
    module: nn.Module = part.component
    _move(module, lambda tensor: tensor.to("cpu").pin_memory())
    return SleepingComponent(part, module, part.num_bytes)


def let_go(module: weakref.ref[nn.Module], device: torch.device) -> None:
    """See that a dropped module's memory is free again: at once, not when the collector comes by."""
    if module() is not None:
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def wake_all(
    asleep: Mapping[str, SleepingComponent], reload: Reload, device: torch.device
) -> dict[str, LoadedComponent]:
    """Bring components back, all or none; bit-identical to what they were.

    Args:
        asleep: The components by name.
        reload: Loads dropped ones.
        device: Where the others go.

    Raises:
        CheckpointError: The files have changed, or cannot be read.
        ResourceError: There is no room for them.
    """
    dropped = [name for name, bed in asleep.items() if bed.module is None]
    read = reload(dropped) if dropped else {}
    for name in dropped:
        before, after = asleep[name].part.weights_version, read[name].weights_version
        if before != after:
            raise CheckpointError(
                f"the weights of {name} on disk are no longer those that were put to sleep: {after}, not {before}"
            )
    woken = {}
    for name, bed in asleep.items():
        if bed.module is None:
            woken[name] = read[name]
        else:
            _move(bed.module, lambda tensor: tensor.to(device))
            woken[name] = bed.part
    return woken


def _move(module: nn.Module, move: Callable[[Tensor], Tensor]) -> None:
    """Put all parameters and buffers elsewhere, in place: tied ones stay tied, and the module is the same."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = move(tensor.data)
