"""Causal checkpoints under the names of their releases, made into folders that cards are read from.

Self Forcing, and LongLive after it, have published the transformer alone, under the names of the original Wan: behind
`model.`, and `generator_ema.` or `generator.` where the whole training state was saved. LongLive adds a LoRA. The rest
is that of the base model, whose folder in diffusers layout is needed. Weights are read from safetensors only: a `.pt`
file has to be saved as such first, by somebody who trusts it.

Source: https://github.com/guandeh17/Self-Forcing, https://github.com/NVlabs/LongLive, and the conversion of Wan in
diffusers 0.36, scripts/convert_wan_to_diffusers.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import list_weight_files, read_weight_files
from fastvideo_core.runtime.weights.keys import rename_all, rename_by_rules
from fastvideo_wan.cards.causal_layout import PIPELINE
from fastvideo_wan.models.chunks import ChunkRule

__all__ = ["convert_causal_release", "release_name"]

_TRANSFORMER = "transformer"
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_LORA_PART = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight$")

release_name = rename_by_rules(
    (
        (r"^(?:(?:generator_ema|generator|base_model|model|_fsdp_wrapped_module)\.)+", ""),
        (r"_fsdp_wrapped_module\.", ""),
        (r"^time_embedding\.0\.", "condition_embedder.time_embedder.linear_1."),
        (r"^time_embedding\.2\.", "condition_embedder.time_embedder.linear_2."),
        (r"^text_embedding\.0\.", "condition_embedder.text_embedder.linear_1."),
        (r"^text_embedding\.2\.", "condition_embedder.text_embedder.linear_2."),
        (r"^time_projection\.1\.", "condition_embedder.time_proj."),
        (r"^head\.modulation$", "scale_shift_table"),
        (r"^head\.head\.", "proj_out."),
        (r"\.modulation$", ".scale_shift_table"),
        # The norm before the cross-attention is the third in the releases and the second here.
        (r"\.norm2\.", ".norm_3."),
        (r"\.norm3\.", ".norm2."),
        (r"\.norm_3\.", ".norm3."),
        (r"\.self_attn\.", ".attn1."),
        (r"\.cross_attn\.", ".attn2."),
        (r"(\.attn[12])\.([qkv])\.", r"\1.to_\2."),
        (r"(\.attn[12])\.o\.", r"\1.to_out.0."),
        (r"\.ffn\.0\.", ".ffn.net.0.proj."),
        (r"\.ffn\.2\.", ".ffn.net.2."),
    )
)
"""From a name in a release to the name of the same weight in diffusers' layout."""


def convert_causal_release(
    weights: Path,
    base: Path,
    folder: Path,
    *,
    rule: ChunkRule,
    lora: Path | None = None,
    lora_alpha: float = 256.0,
) -> None:
    """Write a folder in diffusers layout from a release's transformer and everything else of its base model.

    Args:
        weights: The transformer, safetensors.
        base: Folder of the base model, in diffusers layout.
        folder: What is made; it must not be there.
        rule: Lengths of chunks, window and sink that the release was trained for.
        lora: A LoRA that is added to the transformer, safetensors, in PEFT's layout.
        lora_alpha: Its alpha; the rank is that of its matrices.

    Raises:
        CheckpointError: Names or shapes are not those of the base model's transformer, or the folder is there.
        UnsafeFormatError: A file is in a format that can run code when it is read.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} is there; allowed: a new folder")
    wanted = {name: tuple(entry.shape) for name, entry in list_weight_files(base, _TRANSFORMER).tensors.items()}
    tensors = _read(weights)
    if lora is not None:
        _add_lora(tensors, _read_lora(lora), lora_alpha)
    _check(weights, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, wanted)
    shutil.copytree(base, folder, ignore=lambda path, names: names if Path(path) == base / _TRANSFORMER else [])
    save_file(tensors, folder / _TRANSFORMER / _WEIGHTS)
    config = json.loads((base / _TRANSFORMER / "config.json").read_text())
    window = {
        "_class_name": "CausalWanTransformer3DModel",
        "local_attn_size": rule.window_frames,
        "sink_size": rule.sink_frames,
        "num_frames_per_block": rule.chunk_frames,
    }
    (folder / _TRANSFORMER / "config.json").write_text(json.dumps({**config, **window}, indent=2))
    index = json.loads((base / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": PIPELINE}, indent=2))


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file under the names that they have here."""
    names = rename_all(read_weight_files(path.name, [path]).tensors, release_name)
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(original).contiguous() for name, original in names.items()}


def _read_lora(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the two matrices of each module that a LoRA changes."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in _read(path).items():
        matched = _LORA_PART.match(name)
        if matched is None:
            raise CheckpointError(
                f"{path.name}: {name!r} is no part of a LoRA; allowed: *.lora_A.weight, *.lora_B.weight"
            )
        found.setdefault(matched["module"], {})[matched["part"]] = tensor
    return found


def _add_lora(tensors: dict[str, torch.Tensor], lora: Mapping[str, Mapping[str, torch.Tensor]], alpha: float) -> None:
    for module, parts in lora.items():
        name = f"{module}.weight"
        if name not in tensors or set(parts) != {"A", "B"}:
            raise CheckpointError(
                f"the LoRA changes {name!r} by {sorted(parts)}; allowed: A and B of a weight that is there"
            )
        change = parts["B"].double() @ parts["A"].double() * (alpha / parts["A"].shape[0])
        tensors[name] = (tensors[name].double() + change).to(tensors[name].dtype)


def _check(path: Path, got: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    missing, unexpected = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    other = [name for name in sorted(got.keys() & wanted.keys()) if got[name] != wanted[name]]
    if missing or unexpected or other:
        raise CheckpointError(
            f"{path.name} is not of the base model's make: missing {missing[:3]} ({len(missing)}), "
            f"left over {unexpected[:3]} ({len(unexpected)}), of another shape {other[:3]} ({len(other)})"
        )
