"""A step as linear combinations: the fast mode beside `Sampler.step`.

A sampler's `coefficients` collapse its step into one weighted sum for each tensor that the step makes, so that it takes
about half the operations. It knows nothing of schedules and samplers: rows of different requests, at different steps
of different samplers, are stepped alike, and each gets the same bits whatever its neighbours are. Against
`Sampler.step`, which keeps the reference's order of operations, it differs by float32 rounding.

One sum over the stacked rows of a batch was measured too: on a CPU it is slower than row by row, because stacking
copies and large sums wake threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers.base import BASIS, SamplerState, StepCoefficients

__all__ = ["linear_step"]


def linear_step(
    coefficients: StepCoefficients,
    state: SamplerState,
    velocity: Tensor,
    sample: Tensor,
    *,
    noise: Tensor | None = None,
) -> tuple[Tensor, SamplerState]:
    """Make one step; the arguments stay as they are.

    Args:
        coefficients: `Sampler.coefficients` at the step.
        state: State before the step.
        velocity: The model's (guided) output at `sample`.
        sample: Sample at the step's noise level.
        noise: Fresh noise, for steps that need it.

    Returns:
        The next sample and the state after the step, in the format of `sample`.

    Raises:
        ParameterError: The step needs noise, or an entry of the state, that is not there.
    """
    outputs = (*state.outputs, None, None, None)[:3]
    tensors = (sample, velocity.to(sample.dtype), noise, state.last_sample, *outputs)
    following = _combine(coefficients.sample, tensors)
    new = () if coefficients.output is None else (_combine(coefficients.output, tensors),)
    last = None if coefficients.last_sample is None else _combine(coefficients.last_sample, tensors)
    return following, SamplerState((*new, *state.outputs)[: coefficients.num_outputs], last)


def _combine(weights: Sequence[float], tensors: Sequence[Tensor | None]) -> Tensor:
    """Return the sum of the tensors with non-zero weights."""
    total: Tensor | None = None
    for name, weight, tensor in zip(BASIS, weights, tensors, strict=True):
        if not weight:
            continue
        if tensor is None:
            raise ParameterError("the step needs it", field=name, value=None, allowed="a tensor")
        total = weight * tensor if total is None else torch.add(total, tensor, alpha=weight)
    assert total is not None, "every sample has a weight"
    return total
