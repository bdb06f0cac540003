"""How far two tensors are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Comparison", "compare_tensors"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The distance of a tensor from its reference.

    Attributes:
        is_equal: Whether every bit agrees.
        max_absolute: Greatest difference; infinity where shapes differ or one is NaN and the other is not.
        max_relative: Greatest difference over the greatest magnitude of the reference.
    """

    is_equal: bool
    max_absolute: float
    max_relative: float

    def is_within(self, max_relative: float) -> bool:
        """Tell whether the relative distance keeps a bound; NaN never does."""
        return self.is_equal or self.max_relative <= max_relative


def compare_tensors(value: torch.Tensor, reference: torch.Tensor) -> Comparison:
    """Compare a tensor with its reference, in float64.

    Equal NaN and infinities count as equal only to the bit; a difference involving one is infinite.
    """
    if value.shape != reference.shape:
        return Comparison(False, float("inf"), float("inf"))
    if value.dtype == reference.dtype and torch.equal(value, reference.to(value.device)):
        return Comparison(True, 0.0, 0.0)
    a, b = value.detach().cpu().double(), reference.detach().cpu().double()
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return Comparison(False, float("inf"), float("inf"))
    distance = float((a - b).abs().max()) if a.numel() else 0.0
    scale = float(b.abs().max()) if b.numel() else 0.0
    relative = distance / scale if scale > 0 else (0.0 if distance == 0 else float("inf"))
    return Comparison(False, distance, relative)
