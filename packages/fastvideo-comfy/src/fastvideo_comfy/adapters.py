"""Low-rank adapters on resident weights: stacked in order, and taken off again with the exact base restored.

An adapter adds strength x (alpha / rank) x up @ down to a matrix. Each key of its file has to find a matrix of the
model; one that finds none is an error, since the adapter is then another model's.

Names that are taken: the original release's, with and without ComfyUI's prefix; kohya's with underscores; diffusers'
and PEFT's own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.work import StepCost
from fastvideo_core.runtime.weights.files import read_weight_files
from fastvideo_core.runtime.weights.reader import read_tensors

__all__ = ["Adapter", "PatchReport", "adapted", "patch_cost", "read_adapter"]

_PARTS = re.compile(r"\.(?P<part>lora_A|lora_down|lora_B|lora_up|alpha|diff|diff_b)(?:\.default)?(?:\.weight)?$")
_ROLES = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up"}
_PREFIXES = (
    "",
    "diffusion_model.",
    "model.diffusion_model.",
    "transformer.",
    "base_model.model.",
    "lora_unet_",
    "lora_transformer_",
)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A file's changes by matrix.

    Attributes:
        path: The file.
        parts: Tensors by the file's name of the matrix, then by role: down, up, alpha, diff, diff_b.
    """

    path: Path
    parts: Mapping[str, Mapping[str, Tensor]]


@dataclass(slots=True)
class PatchReport:
    """What a stack of adapters changed.

    Attributes:
        counts: Matrices that each adapter changed, by file name, in the order of the stack.
        num_bytes: Bytes of base weights that are kept to restore them.
        seconds: Time that it took.
    """

    counts: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    seconds: float = 0.0


def read_adapter(path: Path) -> Adapter:
    """Read an adapter file.

    Raises:
        CheckpointError: It cannot be read, or a tensor in it is no part of an adapter.
    """
    files = read_weight_files(path.stem, [path])
    parts: dict[str, dict[str, Tensor]] = {}
    strange: list[str] = []
    for name, tensor in read_tensors(files, dtype=torch.float32):
        match = _PARTS.search(name)
        if match is None:
            strange.append(name)
            continue
        role = _ROLES.get(match["part"], match["part"])
        parts.setdefault(name[: match.start()], {})[role] = tensor
    if strange or not parts:
        raise CheckpointError(
            f"{path.name} is no adapter: {len(strange)} tensors are no part of one, for instance "
            f"{', '.join(strange[:3]) or 'none; it is empty'}",
            unexpected=tuple(strange),
        )
    return Adapter(path, parts)


def patch_cost(module: nn.Module, adapters: Sequence[Adapter], rename: Callable[[str], str]) -> StepCost:
    """Return what putting a stack on costs: a product of two thin matrices each, and the weights read and written.

    Taking it off moves the same bytes and multiplies nothing.
    """
    flops = moved = 0.0
    for adapter in adapters:
        for weight, parts in _matched(module, adapter, rename):
            if "down" in parts and "up" in parts:
                rank = parts["down"].shape[0]
                flops += 2.0 * rank * weight.numel()
            moved += 2.0 * weight.numel() * weight.element_size()
    return StepCost(flops, weight_bytes=moved)


@contextmanager
def adapted(
    module: nn.Module, adapters: Sequence[tuple[Adapter, float]], rename: Callable[[str], str]
) -> Iterator[PatchReport]:
    """Put adapters on a module for as long as the context is open; then its weights are the base's, bit by bit.

    Args:
        module: The module, whose weights are changed in place.
        adapters: Adapters with their strengths, in order.
        rename: From the original names, without prefix, to the module's.

    Raises:
        CheckpointError: An adapter names a matrix that the module does not have, or one of another shape.
    """
    started = time.perf_counter()
    report = PatchReport()
    base: dict[Tensor, Tensor] = {}
    try:
        with torch.no_grad():
            for adapter, strength in adapters:
                report.counts[adapter.path.name] = _put_on(module, adapter, strength, rename, base)
        report.num_bytes = sum(kept.nbytes for kept in base.values())
        report.seconds = time.perf_counter() - started
        yield report
    finally:
        with torch.no_grad():
            for changed, kept in base.items():
                changed.copy_(kept)


def _put_on(
    module: nn.Module, adapter: Adapter, strength: float, rename: Callable[[str], str], base: dict[Tensor, Tensor]
) -> int:
    """Add an adapter to a module, keep what was there before the first one, and return how many tensors it changed."""
    pairs = _matched(module, adapter, rename)
    for weight, parts in pairs:
        if weight not in base:
            base[weight] = weight.detach().clone()
        weight.copy_(_changed(weight, parts, strength, adapter.path.name))
    return len(pairs)


def _matched(
    module: nn.Module, adapter: Adapter, rename: Callable[[str], str]
) -> list[tuple[nn.Parameter, Mapping[str, Tensor]]]:
    """Return the parameters that an adapter changes, each with the tensors of its change."""
    own = dict(module.named_parameters())
    by_kohya = {name.rpartition(".")[0].replace(".", "_"): name.rpartition(".")[0] for name in own}
    found: list[tuple[nn.Parameter, Mapping[str, Tensor]]] = []
    unknown: list[str] = []
    for name, parts in adapter.parts.items():
        stem = _stem(name, own, by_kohya, rename)
        if stem is None:
            unknown.append(name)
            continue
        weight, bias = own[f"{stem}.weight"], own.get(f"{stem}.bias")
        change = {role: tensor for role, tensor in parts.items() if role != "diff_b"}
        if change:
            found.append((weight, change))
        if "diff_b" in parts:
            if bias is None:
                unknown.append(f"{name}.diff_b")
            else:
                found.append((bias, {"diff": parts["diff_b"]}))
    if unknown:
        raise CheckpointError(
            f"{adapter.path.name} changes {len(unknown)} matrices that this model does not have, "
            f"for instance {', '.join(sorted(unknown)[:3])}: it is another model's",
            unexpected=tuple(unknown),
        )
    return found


def _stem(name: str, own: Mapping[str, Any], by_kohya: Mapping[str, str], rename: Callable[[str], str]) -> str | None:
    """Return the module's name, without `.weight`, of a matrix that a file names."""
    for prefix in _PREFIXES:
        if not name.startswith(prefix):
            continue
        plain = name[len(prefix) :]
        renamed = rename(f"{plain}.weight").removesuffix(".weight")
        for candidate in (plain, renamed, by_kohya.get(_as_module(plain, rename))):
            if candidate is not None and f"{candidate}.weight" in own:
                return candidate
    return None


_KOHYA = re.compile(r"^blocks_(\d+)_(self_attn|cross_attn|ffn)_(.+)$")


def _as_module(plain: str, rename: Callable[[str], str]) -> str:
    """Return kohya's spelling of the module's name for kohya's spelling of an original one."""
    match = _KOHYA.match(plain)
    if match is None:
        return plain
    original = f"blocks.{match[1]}.{match[2]}.{match[3]}.weight"
    return rename(original).removesuffix(".weight").replace(".", "_")


def _changed(weight: Tensor, parts: Mapping[str, Tensor], strength: float, label: str) -> Tensor:
    """Return changed weights, computed in float32."""
    change = parts.get("diff")
    if change is None:
        down, up = parts.get("down"), parts.get("up")
        if down is None or up is None:
            raise CheckpointError(f"{label}: a matrix has only one of its two factors")
        alpha = parts.get("alpha")
        scale = 1.0 if alpha is None else float(alpha) / down.shape[0]
        if up.flatten(1).shape[1] != down.flatten(1).shape[0]:
            raise CheckpointError(f"{label}: the factors of a matrix have ranks {up.shape[1]} and {down.shape[0]}")
        change = scale * (up.flatten(1) @ down.flatten(1))
    if change.numel() != weight.numel():
        raise CheckpointError(
            f"{label}: a change of shape {tuple(change.shape)} for weights of shape {tuple(weight.shape)}"
        )
    return (weight.float() + strength * change.reshape(weight.shape).to(weight.device)).to(weight.dtype)
