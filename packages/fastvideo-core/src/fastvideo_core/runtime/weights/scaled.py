"""Weights that are stored small with a scale beside them, as scaled float8 files have them.

A matrix `x.weight` in a float8 format stands for `x.weight * scale`, where the scale is `x.scale_weight` or, in newer
files, `x.weight_scale`: one number, or one for each row. Newer files also say the format in `x.comfy_quant`, a JSON
text as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import torch

from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.files import WeightFiles
from fastvideo_core.runtime.weights.reader import read_tensors

__all__ = ["read_scales", "rescaled"]

_SUFFIXES = (".scale_weight", ".weight_scale")
_FORMAT = ".comfy_quant"
_FORMATS = ("float8_e4m3fn", "float8_e5m2")


def read_scales(files: WeightFiles, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the scales of some weights, float32, by the weight's name in the files.

    Raises:
        CheckpointError: Weights are stored in a format that is not read, or a scale is no finite number.
    """
    stems = {name.removesuffix(".weight"): name for name in names if name.endswith(".weight")}
    present = files.tensors
    wanted = {
        f"{stem}{suffix}": name for stem, name in stems.items() for suffix in _SUFFIXES if f"{stem}{suffix}" in present
    }
    if not wanted:
        return {}
    _check_formats(files, stems)
    found = {}
    for scale_name, scale in read_tensors(files, dtype=torch.float32, names=wanted.keys()):
        if not torch.isfinite(scale).all():
            raise CheckpointError(f"{files.label}: {scale_name!r} is not finite")
        name = wanted[scale_name]
        if not present[name].dtype.startswith("F8_"):
            raise CheckpointError(
                f"{files.label}: {name!r} has a scale and is stored as {present[name].dtype}, not float8"
            )
        found[name] = scale
    return found


def _check_formats(files: WeightFiles, stems: Collection[str]) -> None:
    names = [f"{stem}{_FORMAT}" for stem in stems if f"{stem}{_FORMAT}" in files.tensors]
    for name, text in read_tensors(files, names=names):
        try:
            kind = json.loads(bytes(text.tolist())).get("format")
        except (ValueError, AttributeError, TypeError):
            kind = None
        if kind not in _FORMATS:
            raise CheckpointError(f"{files.label}: {name!r} says format {kind!r}; read are {', '.join(_FORMATS)}")


def rescaled(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 weights times their scale, in a number format.

    Args:
        weight: Float32.
        scale: One number, or one a row.
        dtype: What the result is held in.

    Raises:
        CheckpointError: The scale has another number of values.
    """
    values = scale.to(weight.device)
    if values.numel() == 1:
        return (weight * values.reshape(())).to(dtype)
    if values.numel() != weight.shape[0]:
        raise CheckpointError(f"a scale of {values.numel()} values for weights of shape {tuple(weight.shape)}")
    return (weight * values.reshape(-1, *(1,) * (weight.dim() - 1))).to(dtype)
