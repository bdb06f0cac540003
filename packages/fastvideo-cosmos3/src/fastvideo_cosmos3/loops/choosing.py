"""From logits to a token: the likeliest, or one drawn after temperature, top-k and top-p.

Shape letters: B rows; V vocabulary.

Source: Holtzman et al. 2020, arXiv:1904.09751 (top-p); Fan et al. 2018, arXiv:1805.04833 (top-k).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

__all__ = ["Choosing", "choose_tokens", "draw_uniforms"]


@dataclass(frozen=True, slots=True)
class Choosing:
    """How tokens are chosen.

    Attributes:
        temperature: What logits are divided by; 0 takes the likeliest token.
        top_k: Likeliest tokens that are drawn from; 0 takes all.
        top_p: Probability that the tokens which are drawn from have together, at least; 1 takes all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Read a request's parameters."""
        return cls(float(parameters["temperature"]), int(parameters["top_k"]), float(parameters["top_p"]))


def draw_uniforms(generator: torch.Generator, count: int) -> Tensor:
    """Return what the first `count` tokens of a request are drawn with, float64 in [0, 1)."""
    return torch.rand(count, generator=generator, dtype=torch.float64)


def choose_tokens(logits_BV: Tensor, choosings: Sequence[Choosing], uniforms: Sequence[float]) -> list[int]:
    """Choose a token of each row.

    Args:
        logits_BV: Logits.
        choosings: How, for each row.
        uniforms: What each row is drawn with; those of rows that take the likeliest token are not looked at.
    """
    chosen: list[int] = logits_BV.argmax(dim=-1).tolist()
    for row, (choosing, uniform) in enumerate(zip(choosings, uniforms, strict=True)):
        if choosing.temperature > 0:
            chosen[row] = _draw(logits_BV[row], choosing, uniform)
    return chosen


def _draw(logits_V: Tensor, choosing: Choosing, uniform: float) -> int:
    scaled = logits_V.double() / choosing.temperature
    if choosing.top_k:
        values, ids = scaled.topk(min(choosing.top_k, scaled.numel()))
    else:
        values, ids = scaled.sort(descending=True, stable=True)
    shares = values.softmax(dim=0)
    # The first token is always kept, and then each whose predecessors do not have enough.
    before = shares.cumsum(0) - shares
    kept = shares * (before < choosing.top_p)
    totals = kept.cumsum(0)
    place = int(torch.searchsorted(totals, uniform * float(totals[-1]), right=True))
    return int(ids[min(place, int((kept > 0).sum()) - 1)])
