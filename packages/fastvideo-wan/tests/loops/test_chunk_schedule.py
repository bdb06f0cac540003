"""Noise levels of a chunk against the published ones and against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_wan.loops.chunk_schedule import add_noise, chunk_seed, draw_noise, make_schedule, predict_clean


def exact_time(step: int, shift: int) -> float:
    sigma = Fraction(step, 1000)
    return float(1000 * shift * sigma / (1 + (shift - 1) * sigma))


def test_self_forcings_levels_are_those_of_the_releases() -> None:
    schedule = make_schedule((1000, 750, 500, 250), 5.0)
    assert schedule.times[:2] == (1000.0, 937.5)
    assert schedule.times == pytest.approx((1000.0, 937.5, 833.3333, 625.0), rel=1e-6)
    assert schedule.sigmas == pytest.approx((1.0, 0.9375, 0.8333333, 0.625), rel=1e-6)


@pytest.mark.parametrize(
    ("steps", "shift"),
    [((1000, 850, 700, 550, 350, 275, 200, 125), 12), ((1000, 666, 333), 5), ((999, 500, 1), 1)],
)
def test_levels_are_shifted_fractions_that_no_rounding_touches(steps: tuple[int, ...], shift: int) -> None:
    schedule = make_schedule(steps, float(shift))
    assert schedule.times == pytest.approx([exact_time(step, shift) for step in steps], rel=1e-6)
    assert [1000 * sigma for sigma in schedule.sigmas] == pytest.approx(schedule.times, rel=1e-6)


@pytest.mark.parametrize("steps", [(), (500, 750), (1001, 500), (500, 0), (500, 500)])
def test_steps_that_do_not_fall_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="steps"):
        make_schedule(steps, 5.0)


def test_a_shift_that_is_no_shift_is_refused() -> None:
    with pytest.raises(ParameterError, match="flow_shift"):
        make_schedule((1000,), 0.0)


def test_the_clean_latents_come_back_from_the_true_velocity() -> None:
    clean, noise = (torch.randn(2, 3, 1, 2, 2, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    sigma = torch.tensor([0.9375, 0.625])
    noisy = add_noise(clean, noise, sigma)
    assert torch.allclose(noisy[1], 0.375 * clean[1] + 0.625 * noise[1], atol=1e-6)
    assert torch.allclose(predict_clean(noisy, noise - clean, sigma), clean, atol=1e-6)
    assert noisy.dtype == torch.float32


def test_the_noise_of_a_chunk_depends_on_seed_and_chunk_alone() -> None:
    noise = draw_noise(7, 3, 2, (4, 3, 2, 2))
    assert noise.shape == (2, 4, 3, 2, 2)
    assert torch.equal(noise, draw_noise(7, 3, 2, (4, 3, 2, 2)))
    seeds = {chunk_seed(seed, chunk) for seed in range(20) for chunk in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert not torch.equal(noise, draw_noise(7, 4, 2, (4, 3, 2, 2)))
    assert not torch.equal(noise, draw_noise(8, 3, 2, (4, 3, 2, 2)))
    assert abs(float(draw_noise(0, 0, 4, (16, 3, 20, 20)).std()) - 1) < 0.01
