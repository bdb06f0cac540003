"""Stepping rows of different requests in one call."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.samplers import SamplerState, ScheduleSpec, StepRow, get_sampler, step_rows

SHAPE = (4, 3, 5, 7)
CASES = [
    ("unipc", 8, {"order": 1}),
    ("unipc", 8, {}),
    ("unipc", 9, {"order": 3}),
    ("unipc", 9, {"order": 3, "solver_type": "bh1", "disable_corrector": (0, 4)}),
    ("flow_euler", 6, {}),
    ("dpmpp_2m", 7, {}),
    ("dpmpp_2m", 7, {"order": 1}),
    ("lcm", 4, {"steps": (1000, 750, 500, 250)}),
]


def draw(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def field(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(1.3 * x) - 0.4 * x.roll(1, -1)


class Request:
    """One request that is stepped row by row."""

    def __init__(self, seed: int, name: str, num_steps: int, options: dict) -> None:
        self.sampler = get_sampler(name)
        self.schedule = self.sampler.make_schedule(ScheduleSpec(num_steps, shift=3.0, options=options))
        self.state, self.sample, self.index, self.seed = self.sampler.init_state(self.schedule), draw(seed), 0, seed

    @property
    def is_done(self) -> bool:
        return self.index == self.schedule.num_steps

    @property
    def noise(self) -> torch.Tensor | None:
        is_needed = self.sampler.needs_noise(self.schedule, self.index)
        return draw(1000 * self.seed + self.index) if is_needed else None

    def row(self) -> StepRow:
        coefficients = self.sampler.coefficients(self.schedule, self.index)
        return StepRow(coefficients, self.state, field(self.sample), self.sample, self.noise)

    def take(self, result: tuple[torch.Tensor, SamplerState]) -> None:
        self.sample, self.state = result
        self.index += 1

    def step_alone(self) -> tuple[torch.Tensor, SamplerState]:
        velocity, sample = field(self.sample)[None], self.sample[None]
        last = self.state.last_sample
        state = SamplerState(tuple(m[None] for m in self.state.outputs), None if last is None else last[None])
        noise = None if self.noise is None else self.noise[None]
        return self.sampler.step(self.schedule, state, velocity, sample, self.index, noise=noise)


@pytest.mark.parametrize(("name", "num_steps", "options"), CASES)
def test_each_step_equals_the_exact_one_within_float32(name, num_steps, options):
    request = Request(1, name, num_steps, options)
    while not request.is_done:
        exact, exact_state = request.step_alone()
        request.take(step_rows([request.row()])[0])
        torch.testing.assert_close(request.sample, exact[0], rtol=2e-6, atol=2e-6)
        assert len(request.state.outputs) == len(exact_state.outputs)
        for ours, reference in zip(request.state.outputs, exact_state.outputs, strict=True):
            torch.testing.assert_close(ours, reference[0], rtol=2e-6, atol=2e-6)
        assert (request.state.last_sample is None) == (exact_state.last_sample is None)


def test_neighbours_change_no_bit():
    """Requests of all samplers, with different step counts, joining at different times: each as if it were alone."""
    alone = [Request(seed, *case) for seed, case in enumerate(CASES)]
    for request in alone:
        while not request.is_done:
            request.take(step_rows([request.row()])[0])

    crowd = [Request(seed, *case) for seed, case in enumerate(CASES)]
    for time in range(30):
        running = [r for joined, r in enumerate(crowd) if not r.is_done and time >= joined // 2]
        for request, result in zip(running, step_rows([r.row() for r in running]), strict=True) if running else ():
            request.take(result)

    assert all(request.is_done for request in crowd)
    assert all(torch.equal(a.sample, b.sample) for a, b in zip(alone, crowd, strict=True))


def test_a_request_may_change_between_exact_and_vectorized_steps():
    request, whole = Request(1, *CASES[2]), Request(1, *CASES[2])
    while not whole.is_done:
        sample, state = whole.step_alone()
        last = None if state.last_sample is None else state.last_sample[0]
        whole.take((sample[0], SamplerState(tuple(m[0] for m in state.outputs), last)))
    while not request.is_done:
        if request.index % 2:
            request.take(step_rows([request.row()])[0])
        else:
            sample, state = request.step_alone()
            last = None if state.last_sample is None else state.last_sample[0]
            request.take((sample[0], SamplerState(tuple(m[0] for m in state.outputs), last)))
    torch.testing.assert_close(request.sample, whole.sample, rtol=1e-5, atol=1e-5)


def test_results_share_no_storage():
    requests = [Request(seed, "unipc", 5, {}) for seed in range(3)]
    results = step_rows([request.row() for request in requests])
    tensors = [t for sample, state in results for t in (sample, *state.outputs, state.last_sample)]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors) == 9


def test_rows_are_differentiable():
    row = Request(1, "unipc", 5, {}).row()
    scale = torch.tensor(1.0, requires_grad=True)
    ((sample, _),) = step_rows([StepRow(row.coefficients, row.state, scale * row.velocity, row.sample)])
    sample.sum().backward()
    assert scale.grad is not None and scale.grad != 0


def test_missing_noise_is_refused():
    row = Request(1, *CASES[-1]).row()
    with pytest.raises(ParameterError, match="noise=None: the step needs it"):
        step_rows([StepRow(row.coefficients, row.state, row.velocity, row.sample)])


def test_stochastic_kinds_of_step_fit(start):
    """A mean with fresh noise, as policy-gradient rollouts take: weights alone describe it."""
    from fastvideo_core.loop.samplers import StepCoefficients

    coefficients = StepCoefficients(sample=(0.5, -0.25, 0.125, 0.0, 0.0, 0.0, 0.0))
    noise = torch.ones_like(start)
    ((sample, state),) = step_rows([StepRow(coefficients, SamplerState(), 2 * start, 4 * start, noise)])
    torch.testing.assert_close(sample, 1.5 * start + 0.125)
    assert state == SamplerState()
