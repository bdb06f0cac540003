"""Steps as linear combinations, beside the exact ones."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import SamplerState, ScheduleSpec, StepCoefficients, get_sampler, linear_step

CASES = [
    ("unipc", 8, {"order": 1}),
    ("unipc", 8, {}),
    ("unipc", 50, {}),
    ("unipc", 9, {"order": 3}),
    ("unipc", 9, {"order": 3, "solver_type": "bh1", "disable_corrector": (0, 4)}),
    ("flow_euler", 6, {}),
    ("dpmpp_2m", 7, {}),
    ("dpmpp_2m", 7, {"order": 1}),
    ("lcm", 4, {"steps": (1000, 750, 500, 250)}),
]


class Request:
    """One request, stepped exactly or by its coefficients."""

    def __init__(self, start: torch.Tensor, name: str, num_steps: int, options: dict) -> None:
        self.sampler = get_sampler(name)
        self.schedule = self.sampler.make_schedule(ScheduleSpec(num_steps, shift=3.0, options=options))
        self.state, self.sample, self.index = self.sampler.init_state(self.schedule), start, 0

    @property
    def is_done(self) -> bool:
        return self.index == self.schedule.num_steps

    def results(self, *, is_exact: bool) -> tuple[torch.Tensor, SamplerState]:
        velocity = torch.tanh(1.3 * self.sample) - 0.4 * self.sample.roll(1, -1)
        noise = None
        if self.sampler.needs_noise(self.schedule, self.index):
            noise = torch.randn(self.sample.shape, generator=torch.Generator().manual_seed(self.index))
        if is_exact:
            return self.sampler.step(self.schedule, self.state, velocity, self.sample, self.index, noise=noise)
        coefficients = self.sampler.coefficients(self.schedule, self.index)
        return linear_step(coefficients, self.state, velocity, self.sample, noise=noise)

    def take(self, *, is_exact: bool) -> None:
        self.sample, self.state = self.results(is_exact=is_exact)
        self.index += 1


@pytest.mark.parametrize(("name", "num_steps", "options"), CASES)
def test_each_step_equals_the_exact_one_within_float32(start, name, num_steps, options):
    request = Request(start, name, num_steps, options)
    while not request.is_done:
        sample, state = request.results(is_exact=True)
        request.take(is_exact=False)
        torch.testing.assert_close(request.sample, sample, rtol=2e-6, atol=2e-6)
        assert len(request.state.outputs) == len(state.outputs)
        for ours, exact in zip(request.state.outputs, state.outputs, strict=True):
            torch.testing.assert_close(ours, exact, rtol=2e-6, atol=2e-6)
        assert (request.state.last_sample is None) == (state.last_sample is None)
        if state.last_sample is not None:
            torch.testing.assert_close(request.state.last_sample, state.last_sample, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "num_steps", "options"), CASES)
def test_a_request_may_change_between_exact_and_linear_steps(start, name, num_steps, options):
    whole, mixed = Request(start, name, num_steps, options), Request(start, name, num_steps, options)
    while not whole.is_done:
        whole.take(is_exact=True)
        mixed.take(is_exact=mixed.index % 2 == 0)
    torch.testing.assert_close(mixed.sample, whole.sample, rtol=1e-5, atol=1e-5)


def test_arguments_stay_and_results_are_new(start):
    request = Request(start, "unipc", 5, {})
    request.take(is_exact=False)
    before = [t.clone() for t in (request.sample, *request.state.outputs, request.state.last_sample)]
    sample, state = request.results(is_exact=False)
    after = (request.sample, *request.state.outputs, request.state.last_sample)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    storages = {t.untyped_storage().data_ptr() for t in (sample, state.outputs[0], state.last_sample, *after)}
    assert len(storages) == 3 + len(after)


def test_differentiable(start):
    request = Request(start, "unipc", 5, {})
    scale = torch.tensor(1.0, requires_grad=True)
    coefficients = request.sampler.coefficients(request.schedule, 0)
    sample, _ = linear_step(coefficients, request.state, scale * start, start)
    sample.sum().backward()
    assert scale.grad is not None and scale.grad != 0


def test_what_is_missing_is_named(start):
    few = Request(start, *CASES[-1])
    with pytest.raises(ParameterError, match="noise=None: the step needs it"):
        linear_step(few.sampler.coefficients(few.schedule, 0), few.state, start, start)
    unipc = Request(start, "unipc", 5, {})
    with pytest.raises(ParameterError, match="last_sample=None: the step needs it"):
        linear_step(unipc.sampler.coefficients(unipc.schedule, 2), unipc.state, start, start)


def test_a_mean_with_fresh_noise_fits(start):
    """The transition of a stochastic sampler: a mean that is linear in sample and velocity, and a deviation."""
    coefficients = StepCoefficients(sample=(0.5, -0.25, 0.125, 0.0, 0.0, 0.0, 0.0))
    noise = torch.ones_like(start)
    sample, state = linear_step(coefficients, SamplerState(), 2 * start, 4 * start, noise=noise)
    torch.testing.assert_close(sample, 1.5 * start + 0.125)
    assert state == SamplerState()


def test_a_bfloat16_velocity_keeps_float32_latents(start):
    request = Request(start, "unipc", 5, {})
    coefficients = request.sampler.coefficients(request.schedule, 0)
    sample, state = linear_step(coefficients, request.state, start.bfloat16(), start)
    assert {t.dtype for t in (sample, *state.outputs)} == {torch.float32}
