"""Number formats in a denoise step: where a tensor is cast, and where it must not be.

Latents and sampler history stay float32 for the whole loop: a step's update is often smaller than a bfloat16 rounding.
They are cast to the transformer's format at its input and nowhere else, and to the VAE's format before it decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_core.card.precision import Precision
from fastvideo_core.errors import ParameterError

__all__ = ["LATENTS_DTYPE", "PrecisionPlan", "torch_dtype"]

LATENTS_DTYPE = torch.float32
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(precision: str) -> torch.dtype:
    """Return the torch type of a precision by its name.

    Raises:
        ParameterError: The name is not known.
    """
    try:
        return _DTYPES[precision]
    except KeyError:
        allowed = ", ".join(_DTYPES)
        raise ParameterError("not a known precision", field="precision", value=precision, allowed=allowed) from None


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """The number formats of one request's components.

    Attributes:
        transformer: Format of the denoiser's weights and activations.
        text_encoder: Format of the text encoder.
        vae: Format of the VAE.
    """

    transformer: Precision = "bfloat16"
    text_encoder: Precision = "bfloat16"
    vae: Precision = "float32"

    def __post_init__(self) -> None:
        for name in (self.transformer, self.text_encoder, self.vae):
            torch_dtype(name)

    def transformer_input(self, tensor: Tensor) -> Tensor:
        """Cast latents or conditioning at the transformer's input; the argument itself stays as it is."""
        return tensor.to(torch_dtype(self.transformer))

    def vae_input(self, tensor: Tensor) -> Tensor:
        """Cast latents or pixels at the VAE's input."""
        return tensor.to(torch_dtype(self.vae))

    def latents(self, tensor: Tensor) -> Tensor:
        """Cast to the format of latents and sampler history, float32."""
        return tensor.to(LATENTS_DTYPE)
