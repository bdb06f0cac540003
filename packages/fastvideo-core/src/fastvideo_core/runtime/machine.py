"""What this machine has: Python, torch, memory, devices, disks, encoders; and which cards it can therefore run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fastvideo_core.card import ModelCard
from fastvideo_core.runtime.weights.disk import free_disk_bytes
from fastvideo_core.runtime.weights.memory import available_memory
from fastvideo_core.runtime.weights.needs import FoundWeights, find_weights
from fastvideo_core.runtime.weights.text import format_bytes

__all__ = ["CardVerdict", "Device", "Machine", "inspect_machine", "judge_card"]

_ENCODERS = {"libx264": ".mp4", "libvpx-vp9": ".webm", "aac": "sound in .mp4", "libopus": "sound in .webm"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device that weights can be put on.

    Attributes:
        name: As `--device` takes it.
        title: What it is.
        total_bytes: Its memory.
        available_bytes: What can be allocated now.
    """

    name: str
    title: str
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        python: Version and platform.
        torch: Version.
        cpu_capability: Vector instructions that torch uses.
        num_threads: Threads that torch uses for one operation.
        num_cores: Cores that this process may use.
        devices: The CPU, and accelerators.
        no_gpu_reason: Why there is no accelerator; None if there is one.
        disks: Free bytes of the folders that are written to, by what they are for.
        pyav: Version.
        missing_encoders: Encoders that PyAV lacks, with what cannot be written without them.
    """

    python: str
    torch: str
    cpu_capability: str
    num_threads: int
    num_cores: int
    devices: tuple[Device, ...]
    no_gpu_reason: str | None
    disks: dict[str, tuple[str, int]]
    pyav: str
    missing_encoders: dict[str, str]


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card can run here.

    Attributes:
        card: Its id.
        weights: Where its weights are, in words.
        need_bytes: Bytes of its weights by number format; empty while the weights are not on this machine.
        runs_in: Number formats in which the weights fit, by device.
        reasons: What stands in the way, one line each.
    """

    card: str
    weights: str
    need_bytes: dict[str, int] = field(default_factory=dict)
    runs_in: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def can_run(self) -> bool:
        """Whether the weights are here and fit on some device in some number format."""
        return any(self.runs_in.values())


def inspect_machine() -> Machine:
    """Look at this machine; imports torch and PyAV."""
    import av
    import torch

    devices = tuple(_devices())
    return Machine(
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        num_cores=_num_cores(),
        devices=devices,
        no_gpu_reason=None if len(devices) > 1 else _why_no_gpu(),
        disks=_disks(),
        pyav=av.__version__,
        missing_encoders={name: use for name, use in _ENCODERS.items() if name not in av.codecs_available},
    )


def judge_card(card: ModelCard, machine: Machine) -> CardVerdict:
    """Say whether a card can run on a machine; reads headers of weight files, no weights, and asks no network."""
    found = find_weights(card)
    if found is None:
        size = card.checkpoint.download_bytes
        places = ", ".join(source.location for source in card.checkpoint.sources)
        said = "" if size is None else f", {format_bytes(size)} to download"
        return CardVerdict(card.model_id, f"not on this machine ({places}{said})", reasons=("no weights here",))
    where = ", ".join(f"{source.kind} {source.location}" for source in card.checkpoint.sources)
    if found.problems:
        return CardVerdict(card.model_id, where, reasons=found.problems)
    return _weigh(card, found, machine, where)


def _weigh(card: ModelCard, found: FoundWeights, machine: Machine, where: str) -> CardVerdict:
    assumed = card.recipe.assumes_precision
    needs: dict[str, int] = {
        one: found.memory_bytes(card, one) for one in card.precision.allowed if assumed in ("any", one)
    }
    runs_in = {
        device.name: tuple(one for one, need in needs.items() if need <= device.available_bytes)
        for device in machine.devices
    }
    least = min(needs.values())
    reasons = [
        f"{device.name}: at least {format_bytes(least)} needed, {format_bytes(device.available_bytes)} available"
        for device in machine.devices
        if not runs_in[device.name]
    ]
    return CardVerdict(card.model_id, where, needs, runs_in, tuple(reasons))


def _devices() -> Iterator[Device]:
    import psutil
    import torch

    yield Device("cpu", platform.processor() or platform.machine(), psutil.virtual_memory().total, available_memory())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        name = f"cuda:{index}"
        yield Device(name, properties.name, properties.total_memory, available_memory(name))


def _why_no_gpu() -> str:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch finds no CUDA device or driver"


def _num_cores() -> int:
    # A container may have fewer than the machine; not every system can tell.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _disks() -> dict[str, tuple[str, int]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = {"results": Path("outputs"), "downloads": Path(HF_HUB_CACHE)}
    return {name: (str(folder), free_disk_bytes(folder)) for name, folder in folders.items()}
