"""How far two tensors are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Comparison", "compare_tensors"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The distance of a tensor from its reference.

    Attributes:
        is_equal: Whether every bit agrees and none is NaN.
        max_absolute: Greatest difference; infinity where shapes differ, or either is NaN, or only one is infinite.
        max_relative: Greatest difference over the greatest finite magnitude of the reference.
    """

    is_equal: bool
    max_absolute: float
    max_relative: float

    def is_within(self, max_relative: float) -> bool:
        """Tell whether the relative distance keeps a bound; NaN never does."""
        return self.is_equal or self.max_relative <= max_relative


def compare_tensors(value: torch.Tensor, reference: torch.Tensor) -> Comparison:
    """Compare a tensor with its reference, in float64.

    Infinities of one sign are equal. NaN equals nothing, also not NaN: what agrees only in being broken is no parity.
    """
    infinite = float("inf")
    if value.shape != reference.shape or value.is_complex() != reference.is_complex():
        return Comparison(False, infinite, infinite)
    a, b = _as_doubles(value), _as_doubles(reference)
    if a.numel() == 0:
        return Comparison(value.dtype == reference.dtype, 0.0, 0.0)
    # Where both are infinite their difference would be NaN.
    differences = torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(nan=infinite, posinf=infinite)
    distance = float(differences.max())
    scale = float(torch.where(b.isfinite(), b.abs(), 0.0).max())
    relative = 0.0 if distance == 0 else distance / scale if scale > 0 else infinite
    return Comparison(distance == 0 and _has_same_bits(value, reference), distance, relative)


def _as_doubles(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _has_same_bits(value: torch.Tensor, reference: torch.Tensor) -> bool:
    """Tell whether two tensors have one format and the same bytes, which tell zero from minus zero."""
    if value.dtype != reference.dtype:
        return False
    a, b = (t.detach().cpu().resolve_conj().resolve_neg().reshape(-1) for t in (value, reference))
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
