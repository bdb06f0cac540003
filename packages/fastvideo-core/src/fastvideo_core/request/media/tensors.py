"""Tensors and latents as `.safetensors` files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.embedded import SAFETENSORS_KEY
from fastvideo_core.request.media.files import open_input
from fastvideo_core.request.provenance import Provenance

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LATENTS_KEY", "MAX_LATENT_BYTES", "encode_tensor", "load_latents"]

LATENTS_KEY = "latents"
MAX_LATENT_BYTES = 4 << 30


def encode_tensor(key: str, tensor: npt.NDArray[Any] | Tensor, provenance: Provenance | None) -> bytes:
    """Return a safetensors file with one tensor.

    Args:
        key: The tensor's name in the file.
        tensor: Array or tensor, on any device.
        provenance: Goes into the file's metadata.
    """
    metadata = {SAFETENSORS_KEY: provenance.to_json()} if provenance is not None else None
    if isinstance(tensor, np.ndarray):
        from safetensors.numpy import save as save_array

        return save_array({key: np.ascontiguousarray(tensor)}, metadata)
    from safetensors.torch import save as save_tensor

    return save_tensor({key: tensor.detach().cpu().contiguous()}, metadata)


def load_latents(path: str | Path, *, field: str = "latents") -> npt.NDArray[np.float32]:
    """Read latents from a safetensors file.

    Args:
        path: The file; its tensor `latents` is read.
        field: Name of the parameter, for messages.

    Returns:
        float32 (C, T, H, W).

    Raises:
        MediaError: No such file, not safetensors, or no such latents in it.
    """
    from safetensors.numpy import load

    with open_input(path, what="latents", field=field, max_bytes=MAX_LATENT_BYTES) as file:
        data = file.read()
    try:
        found = load(data).get(LATENTS_KEY)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise MediaError("not a readable safetensors file", field=field, value=str(path)) from error
    if found is None or found.dtype != np.float32 or found.ndim != 4:
        raise MediaError(
            "holds no latents", field=field, value=str(path), allowed="a tensor `latents`, float32 (C, T, H, W)"
        )
    latents: npt.NDArray[np.float32] = found
    return latents
