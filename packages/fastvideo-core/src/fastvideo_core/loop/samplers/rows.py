"""One vectorized step for rows of different requests, each with its own schedule, step and sampler.

Shape letters: B rows, N elements of a sample.

Each row is a linear combination with weights of its own. Terms are multiplied and added one after the other, so a row's
result does not depend on its neighbours or on their number: stepping it alone gives the same bits. Against
`Sampler.step`, whose order of operations is another, it differs by float32 rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers.base import BASIS, SamplerState, StepCoefficients

__all__ = ["StepRow", "step_rows"]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One request's step.

    Attributes:
        coefficients: `Sampler.coefficients` at the request's step index.
        state: The request's sampler state.
        velocity: Model output, in the sample's shape.
        sample: Sample; the same shape in all rows.
        noise: Fresh noise, for steps that need it.
    """

    coefficients: StepCoefficients
    state: SamplerState
    velocity: Tensor
    sample: Tensor
    noise: Tensor | None = None

    def basis(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that `BASIS` names; None where there is none."""
        outputs = (*self.state.outputs, None, None, None)[:3]
        return (self.sample, self.velocity, self.noise, self.state.last_sample, *outputs)


def step_rows(rows: Sequence[StepRow]) -> list[tuple[Tensor, SamplerState]]:
    """Step all rows; the results share no storage.

    Args:
        rows: At least one.

    Returns:
        The next sample and state of each row.

    Raises:
        ParameterError: A row's step needs noise, or an entry of the state, that is not there.
    """
    tensors = [row.basis() for row in rows]
    samples = _combine(tensors, [row.coefficients.sample for row in rows])
    outputs = _combine(tensors, [row.coefficients.output for row in rows])
    last_samples = _combine(tensors, [row.coefficients.last_sample for row in rows])
    results: list[tuple[Tensor, SamplerState]] = []
    for row, sample, output, last_sample in zip(rows, samples, outputs, last_samples, strict=True):
        assert sample is not None
        new = () if output is None else (output,)
        kept = (*new, *row.state.outputs)[: row.coefficients.num_outputs]
        results.append((sample, SamplerState(kept, last_sample)))
    return results


def _combine(
    tensors: Sequence[tuple[Tensor | None, ...]], weights: Sequence[tuple[float, ...] | None]
) -> list[Tensor | None]:
    """Return the weighted sum of each row; None for rows without weights."""
    members = [(i, row) for i, row in enumerate(weights) if row is not None]
    results: list[Tensor | None] = [None] * len(weights)
    total: Tensor | None = None
    for column in range(len(BASIS)):
        if not any(row[column] for _, row in members):
            continue
        stacked = torch.stack([_entry(tensors[i], column, row[column]) for i, row in members])
        weight_B = torch.tensor([row[column] for _, row in members], dtype=stacked.dtype, device=stacked.device)
        term = weight_B.view(-1, *(1,) * (stacked.ndim - 1)) * stacked
        total = term if total is None else total + term
    if total is not None:
        for (i, _), row_sum in zip(members, total.unbind(0), strict=True):
            # A copy, so that no request's state keeps the memory of others alive.
            results[i] = row_sum.clone()
    return results


def _entry(tensors: tuple[Tensor | None, ...], column: int, weight: float) -> Tensor:
    """Return a row's tensor of one column, in the sample's format; any finite one where the weight is zero."""
    sample, tensor = tensors[0], tensors[column]
    assert sample is not None
    if tensor is not None:
        return tensor.to(sample.dtype)
    if weight:
        raise ParameterError("the step needs it", field=BASIS[column], value=None, allowed="a tensor")
    return sample
