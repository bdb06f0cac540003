"""Low-rank adapters on resident weights: stacked in order, and taken off again with the exact base restored.

An adapter adds strength x (alpha / rank) x up @ down to a matrix. Each key of its file has to find a matrix of the
model; one that finds none is an error, since the adapter is then another model's.

Names that are taken: the original release's, with and without ComfyUI's prefix; kohya's with underscores; diffusers'
and PEFT's own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastvideo_comfy.keys import WAN_TRANSFORMER
from fastvideo_core.errors import CheckpointError
from fastvideo_core.loop.work import StepCost
from fastvideo_core.runtime.patches import WeightPatch
from fastvideo_core.runtime.weights.files import read_weight_files
from fastvideo_core.runtime.weights.reader import read_tensors

__all__ = [
    "Adapter",
    "PatchReport",
    "adapter_patch",
    "patch_cost",
    "put_on",
    "read_adapter",
    "restore_cost",
    "stack_key",
]

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
    """

    counts: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0


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
    """Return what putting a stack on costs: a product of two thin matrices each, and the weights read and written."""
    flops = moved = 0.0
    for adapter in adapters:
        for weight, parts in _matched(module, adapter, rename):
            if "down" in parts and "up" in parts:
                rank = parts["down"].shape[0]
                flops += 2.0 * rank * weight.numel()
            moved += 2.0 * weight.numel() * weight.element_size()
    return StepCost(flops, weight_bytes=moved)


def restore_cost(module: nn.Module, adapters: Sequence[Adapter], rename: Callable[[str], str]) -> StepCost:
    """Return what taking a stack off costs: every changed weight is read from its copy and written, once."""
    changed = {weight for adapter in adapters for weight, _ in _matched(module, adapter, rename)}
    return StepCost(0.0, weight_bytes=float(sum(2 * weight.nbytes for weight in changed)))


def put_on(
    module: nn.Module, adapters: Sequence[tuple[Adapter, float]], rename: Callable[[str], str]
) -> tuple[PatchReport, Callable[[], None]]:
    """Put adapters on a module, whose weights are changed in place.

    Args:
        module: The module.
        adapters: Adapters with their strengths, in order.
        rename: From the original names, without prefix, to the module's.

    Returns:
        What was changed; and what makes the weights the base's again, bit by bit.

    Raises:
        CheckpointError: An adapter names a matrix that the module does not have, or one of another shape; the weights
            are the base's then.
    """
    report, base = PatchReport(), dict[Tensor, Tensor]()

    def undo() -> None:
        with torch.no_grad():
            for changed, kept in base.items():
                changed.copy_(kept)

    try:
        with torch.no_grad():
            for adapter, strength in adapters:
                report.counts[adapter.path.name] = _put_on(module, adapter, strength, rename, base)
    except BaseException:
        undo()
        raise
    report.num_bytes = sum(kept.nbytes for kept in base.values())
    return report, undo


def adapter_patch(
    module: nn.Module,
    uses: Sequence[tuple[Path, float]],
    *,
    family: str,
    tell: Callable[[str], None] = lambda line: None,  # noqa: ARG005 - says nothing
) -> WeightPatch:
    """Return a stack of adapter files as a change of weights that an engine puts on, prices and takes off.

    Args:
        module: The module that it is for.
        uses: Files with their strengths, in order.
        family: Family of the card.
        tell: Told how many matrices each file has changed.

    Raises:
        CheckpointError: A file is no adapter, or is another model's.
    """
    if family != "wan":
        raise CheckpointError(f"adapters of the {family} family are not known; known: wan")
    adapters = [(read_adapter(path), strength) for path, strength in uses]
    files = [adapter for adapter, _ in adapters]

    def change(target: nn.Module) -> Callable[[], None]:
        report, undo = put_on(target, adapters, WAN_TRANSFORMER)
        tell(", ".join(f"{name}: {count} matrices" for name, count in report.counts.items()))
        return undo

    return WeightPatch(
        stack_key(uses),
        change,
        patch_cost(module, files, WAN_TRANSFORMER),
        restore_cost(module, files, WAN_TRANSFORMER),
    )


def stack_key(uses: Sequence[tuple[Path, float]]) -> str:
    """Return a name of a stack, which another content of its files changes."""
    digest = hashlib.sha256()
    for path, strength in uses:
        info = path.stat()
        digest.update(f"{path.resolve()} {info.st_size} {info.st_mtime_ns} {strength!r}\n".encode())
    return f"{'+'.join(path.stem for path, _ in uses)}-{digest.hexdigest()[:12]}"


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
