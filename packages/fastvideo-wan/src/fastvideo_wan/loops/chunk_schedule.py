"""Noise levels and noise of one chunk of a stream, and the update from one level to the next.

Shapes: B batch rows; C latent channels; T, H, W latent frames, rows, columns; N noise levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError

NUM_TABLE_STEPS = 1000


@dataclass(frozen=True, slots=True)
class ChunkSchedule:
    """The noise levels that a chunk goes through.

    Attributes:
        times: What the model is told, falling from 1000; not whole numbers, and must not be rounded.
        sigmas: The part of noise at each, 0 to 1.
    """

    times: tuple[float, ...]
    sigmas: tuple[float, ...]


@lru_cache(maxsize=64)
def make_schedule(steps: tuple[int, ...], shift: float) -> ChunkSchedule:
    """Return the levels that a list of steps stands for.

    Args:
        steps: Falling, 1 to 1000, as the releases list them before the shift.
        shift: Flow shift of the table of 1000 levels from which the steps are picked.

    Raises:
        ParameterError: If there is no step, or they are out of range or do not fall.

    Source: Huang et al. 2025, Self Forcing, arXiv:2506.08009, section 4.
    """
    falls = all(later < earlier for earlier, later in pairwise(steps))
    if not steps or not falls or steps[0] > NUM_TABLE_STEPS or steps[-1] < 1:
        raise ParameterError(
            "steps", field="steps", value=list(steps), allowed="falling, from at most 1000 to at least 1"
        )
    sigmas = shifted_sigmas(shift)
    times = torch.cat([sigmas * NUM_TABLE_STEPS, torch.zeros(1)])
    picked = [float(times[NUM_TABLE_STEPS - step]) for step in steps]
    return ChunkSchedule(tuple(picked), tuple(nearest_sigma(time, shift) for time in picked))


@lru_cache(maxsize=64)
def shifted_sigmas(shift: float) -> Tensor:
    """Return the table of 1000 noise levels, from 1 down, float32, which is the releases' type."""
    if shift <= 0:
        raise ParameterError("shift", field="flow_shift", value=shift, allowed="above 0")
    sigmas = torch.linspace(1.0, 0.0, NUM_TABLE_STEPS + 1)[:-1]
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def nearest_sigma(time: float, shift: float) -> float:
    """Return the table's level whose time is nearest to `time`."""
    sigmas = shifted_sigmas(shift)
    return float(sigmas[(sigmas * NUM_TABLE_STEPS - time).abs().argmin()])


def predict_clean(noisy_BCTHW: Tensor, velocity_BCTHW: Tensor, sigma: Tensor | float) -> Tensor:
    """Return the clean latents that a velocity stands for, in float64 and back to the noisy latents' type."""
    clean = noisy_BCTHW.double() - _rows(sigma, noisy_BCTHW) * velocity_BCTHW.double()
    return clean.to(noisy_BCTHW.dtype)


def add_noise(clean_BCTHW: Tensor, noise_BCTHW: Tensor, sigma: Tensor | float) -> Tensor:
    """Return latents at a noise level, in the clean latents' type."""
    level = _rows(sigma, clean_BCTHW)
    return ((1 - level) * clean_BCTHW.double() + level * noise_BCTHW.double()).to(clean_BCTHW.dtype)


def follow_velocity(
    noisy_BCTHW: Tensor, velocity_BCTHW: Tensor, sigma: Tensor | float, next_sigma: Tensor | float
) -> Tensor:
    """Return latents at the next noise level along the velocity, in the noisy latents' type."""
    step = _rows(next_sigma, noisy_BCTHW) - _rows(sigma, noisy_BCTHW)
    return (noisy_BCTHW.double() + step * velocity_BCTHW.double()).to(noisy_BCTHW.dtype)


def _rows(sigma: Tensor | float, like: Tensor) -> Tensor:
    """Return noise levels, one for all rows or one a row, such that they multiply latents, float64."""
    return torch.as_tensor(sigma, dtype=torch.float64, device=like.device).reshape(-1, 1, 1, 1, 1)


def chunk_seed(seed: int, chunk: int) -> int:
    """Return the seed of a chunk's noise; neighbouring seeds and chunks have nothing in common."""
    digest = hashlib.blake2b(f"{seed}/{chunk}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def draw_noise(seed: int, chunk: int, num_levels: int, shape: Sequence[int]) -> Tensor:
    """Return the noise of a chunk for each of its levels, float32 on the CPU, shape (N, *shape).

    It depends on the stream's seed and the chunk's number alone, so that an endless stream needs no endless noise, and
    a chunk that is made again is the same.
    """
    generator = torch.Generator().manual_seed(chunk_seed(seed, chunk))
    return torch.randn((num_levels, *shape), generator=generator)
