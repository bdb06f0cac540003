"""UniPC against diffusers' scheduler, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import UniPCMultistepScheduler

from fastvideo_core.errors import ParameterError, StateError
from fastvideo_core.loop.policies.flow_shift import FlowSigmas, ShiftedSigmas
from fastvideo_core.loop.samplers import SamplerState, ScheduleSpec, get_sampler
from fastvideo_core.loop.state import decode_state, encode_state

UNIPC = get_sampler("unipc")


def make_scheduler(**settings) -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(**({"prediction_type": "flow_prediction", "use_flow_sigmas": True} | settings))


def assert_same(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> None:
    assert len(ours) == len(reference)
    assert [torch.equal(a, b) for a, b in zip(ours, reference, strict=True)] == [True] * len(ours)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 12.0])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 8, 20, 50])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_trajectory_equals_the_reference(make_trajectory, make_reference, order, num_steps, shift):
    scheduler = make_scheduler(solver_order=order, flow_shift=shift)
    scheduler.set_timesteps(num_steps)

    schedule, ours = make_trajectory("unipc", ScheduleSpec(num_steps, shift=shift, options={"order": order}))

    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert schedule.timesteps.dtype == torch.int64
    assert torch.equal(schedule.timesteps, scheduler.timesteps)
    assert_same(ours, make_reference(scheduler))


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("num_steps", [2, 8, 20])
def test_bh1_equals_the_reference_up_to_its_last_step(make_trajectory, make_reference, order, num_steps):
    """The reference multiplies an infinite B(h) by zero in the last step and returns NaN; that step gives x0 here."""
    scheduler = make_scheduler(solver_order=order, solver_type="bh1", flow_shift=3.0)
    scheduler.set_timesteps(num_steps)

    options = {"order": order, "solver_type": "bh1"}
    _, ours = make_trajectory("unipc", ScheduleSpec(num_steps, shift=3.0, options=options))

    reference = make_reference(scheduler)
    assert_same(ours[:-1], reference[:-1])
    assert reference[-1].isnan().all()
    # A step to sigma 0 of order 1 ends at the prediction of x0.
    assert torch.equal(ours[-1], scheduler.model_outputs[-1])


def test_bh1_whole_trajectory_with_a_repeated_last_level(make_trajectory, make_reference):
    scheduler = make_scheduler(solver_order=2, solver_type="bh1", flow_shift=3.0, final_sigmas_type="sigma_min")
    scheduler.set_timesteps(7)
    options = {"solver_type": "bh1", "final_sigma": "sigma_min"}
    schedule, ours = make_trajectory("unipc", ScheduleSpec(7, shift=3.0, options=options))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert_same(ours, make_reference(scheduler))


@pytest.mark.parametrize("disabled", [[0], [0, 1, 2], [4], list(range(10))])
def test_disabled_corrector(make_trajectory, make_reference, disabled):
    scheduler = make_scheduler(solver_order=2, flow_shift=5.0, disable_corrector=disabled)
    scheduler.set_timesteps(10)
    spec = ScheduleSpec(10, shift=5.0, options={"disable_corrector": disabled})
    _, ours = make_trajectory("unipc", spec)
    assert_same(ours, make_reference(scheduler))


@pytest.mark.parametrize("order", [2, 3])
def test_full_order_to_the_end(make_trajectory, make_reference, order):
    """Without `lower_order_final` the reference fails in its last step, to zero; the steps before it are those here."""
    scheduler = make_scheduler(solver_order=order, flow_shift=3.0, lower_order_final=False)
    scheduler.set_timesteps(9)
    given = ShiftedSigmas(scheduler.sigmas[:-1].double().numpy())
    options = {"order": order, "lower_order_final": False, "final_sigma": "given"}
    schedule, ours = make_trajectory("unipc", ScheduleSpec(8, sigmas=given, options=options))
    assert torch.equal(schedule.timesteps, scheduler.timesteps[:-1])
    assert_same(ours, make_reference(scheduler, end=-1))


@pytest.mark.parametrize("shift", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("num_steps", [1, 4, 35])
def test_native_grid_of_cosmos3(make_trajectory, make_reference, num_steps, shift):
    scheduler = make_scheduler(flow_shift=shift)
    sigmas = np.linspace(1.0 - 1.0 / 1000, 0.0, num_steps + 1)[:-1]
    scheduler.set_timesteps(sigmas=sigmas)
    schedule, ours = make_trajectory("unipc", ScheduleSpec(num_steps, shift=shift, options={"grid": "native"}))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert torch.equal(schedule.timesteps, scheduler.timesteps)
    assert_same(ours, make_reference(scheduler))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the reference and numpy 2
def test_karras_grid(make_trajectory, make_reference):
    settings = {"use_karras_sigmas": True, "sigma_min": 0.01, "sigma_max": 200.0}
    scheduler = make_scheduler(flow_shift=5.0, **settings)
    scheduler.set_timesteps(12)
    options = {"grid": "karras", "sigma_min": 0.01, "sigma_max": 200.0}
    schedule, ours = make_trajectory("unipc", ScheduleSpec(12, shift=5.0, options=options))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert torch.equal(schedule.timesteps, scheduler.timesteps)
    assert_same(ours, make_reference(scheduler))


def test_own_levels_are_shifted_once_and_only_if_they_were_not(make_trajectory, make_reference):
    levels = [1.0, 0.8, 0.55, 0.3, 0.1]
    scheduler = make_scheduler(flow_shift=4.0)
    scheduler.set_timesteps(sigmas=np.array(levels))
    schedule, ours = make_trajectory("unipc", ScheduleSpec(5, shift=4.0, sigmas=FlowSigmas(levels)))
    assert torch.equal(schedule.sigmas, scheduler.sigmas)
    assert_same(ours, make_reference(scheduler))

    final = UNIPC.make_schedule(ScheduleSpec(5, shift=4.0, sigmas=ShiftedSigmas(levels)))
    assert final.sigma_values[1:] == pytest.approx([*levels[1:], 0.0])
    assert final.shift == 1.0


@pytest.mark.parametrize("begin", [1, 4, 9])
def test_begin_in_the_middle(make_trajectory, make_reference, begin):
    """Video to video starts late: the first step made is of order 1, whatever its index."""
    scheduler = make_scheduler(solver_order=3, flow_shift=3.0)
    scheduler.set_timesteps(10)
    _, ours = make_trajectory("unipc", ScheduleSpec(10, shift=3.0, begin=begin, options={"order": 3}))
    assert_same(ours, make_reference(scheduler, begin=begin))


def test_many_rows_equal_each_row(velocity_field):
    schedule = UNIPC.make_schedule(ScheduleSpec(6, shift=3.0, options={"order": 3}))
    samples = torch.randn(3, 4, 3, 5, 7, generator=torch.Generator().manual_seed(5))
    together, states = samples, UNIPC.init_state(schedule)
    alone = [(row[None], UNIPC.init_state(schedule)) for row in samples]
    for i in range(6):
        velocity = velocity_field(together, schedule.timestep_values[i])
        together, states = UNIPC.step(schedule, states, velocity, together, i)
        alone = [UNIPC.step(schedule, s, velocity[n : n + 1], x, i) for n, (x, s) in enumerate(alone)]
    torch.testing.assert_close(together, torch.cat([x for x, _ in alone]), rtol=1e-6, atol=1e-6)


def test_bfloat16_velocity_equals_the_reference(start):
    """A bfloat16 transformer gives bfloat16 velocities; latents stay float32."""
    scheduler = make_scheduler(flow_shift=3.0)
    scheduler.set_timesteps(5)
    scheduler.set_begin_index(0)
    schedule = UNIPC.make_schedule(ScheduleSpec(5, shift=3.0))
    ours, state, reference = start.clone(), UNIPC.init_state(schedule), start.clone()
    for i, timestep in enumerate(scheduler.timesteps):
        velocity = torch.sin(ours * (i + 1)).bfloat16()
        ours, state = UNIPC.step(schedule, state, velocity, ours, i)
        reference = scheduler.step(velocity, timestep, reference, return_dict=False)[0]
        assert ours.dtype == torch.float32
        assert torch.equal(ours, reference)


def test_step_changes_no_argument_and_is_differentiable(start):
    schedule = UNIPC.make_schedule(ScheduleSpec(4, shift=3.0, options={"order": 3}))
    x = start.clone().requires_grad_()
    scale = torch.tensor(0.3, requires_grad=True)
    sample, state = x, UNIPC.init_state(schedule)
    for i in range(4):
        before = [t.clone() for t in (sample, *state.outputs)]
        new_sample, new_state = UNIPC.step(schedule, state, scale * sample, sample, i)
        assert all(torch.equal(a, b) for a, b in zip(before, (sample, *state.outputs), strict=True))
        sample, state = new_sample, new_state
    sample.sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0
    assert scale.grad is not None and scale.grad != 0


def test_gradient_equals_finite_differences(start):
    schedule = UNIPC.make_schedule(ScheduleSpec(5, shift=3.0))

    def end(scale: torch.Tensor) -> torch.Tensor:
        sample, state = start.double(), UNIPC.init_state(schedule)
        for i in range(5):
            sample, state = UNIPC.step(schedule, state, scale * sample, sample, i)
        return sample.mean()

    scale = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, (scale,))


def test_schedule_and_state_survive_the_codec(make_trajectory, velocity_field, start):
    """Stop after any step, store state and schedule, go on: the same bits."""
    spec = ScheduleSpec(6, shift=3.0, options={"order": 3})
    _, whole = make_trajectory("unipc", spec)
    schedule, sample = UNIPC.make_schedule(spec), start.clone()
    state = UNIPC.init_state(schedule)
    for i in range(6):
        velocity = velocity_field(sample, schedule.timestep_values[i])
        sample, state = UNIPC.step(schedule, state, velocity, sample, i)
        schedule = decode_state(encode_state(schedule), type(schedule))
        state = decode_state(encode_state(state), SamplerState)
        assert torch.equal(sample, whole[i])


def test_a_step_out_of_turn_is_refused(start):
    schedule = UNIPC.make_schedule(ScheduleSpec(4, shift=3.0))
    with pytest.raises(StateError, match="holds 0 earlier outputs, step 2 needs 2"):
        UNIPC.step(schedule, UNIPC.init_state(schedule), start, start, 2)
    with pytest.raises(StateError, match="step 4 is not in the unipc schedule: 0 to 3"):
        UNIPC.step(schedule, UNIPC.init_state(schedule), start, start, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 4}, "order=4: .*allowed: 1, 2, 3"),
        ({"solver_type": "bh3"}, "solver_type='bh3': .*allowed: bh1, bh2"),
        ({"grid": "cosine"}, "grid='cosine'"),
        ({"grid": "karras"}, "needs bounds"),
        ({"grid": "karras", "sigma_min": 2.0, "sigma_max": 1.0}, "0 < sigma_min < sigma_max"),
        ({"final_sigma": "one"}, "final_sigma='one'"),
        ({"solver_typ": "bh1"}, "no such option; allowed: .*; nearest: solver_type"),
        ({"lower_order_final": False}, "lower_order_final=False: .*; nearest: True"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ParameterError, match=message):
        UNIPC.make_schedule(ScheduleSpec(8, shift=3.0, options=options))


@pytest.mark.parametrize(
    ("levels", "num_steps", "message"),
    [
        ([0.9, 0.5], 3, "allowed: 2, as there are noise levels; nearest: 2"),
        ([0.5, 0.9], 2, "each below the one before"),
        ([0.9, 0.9, 0.5], 3, "each below the one before"),
        ([1.5, 0.5], 2, r"levels in \[0, 1\]"),
        ([0.5, -0.5], 2, r"levels in \[0, 1\]"),
        ([0.5, float("nan")], 2, "not finite"),
        ([], 1, "at least one"),
    ],
)
def test_bad_levels_are_refused(levels, num_steps, message):
    with pytest.raises(ParameterError, match=message):
        UNIPC.make_schedule(ScheduleSpec(num_steps, sigmas=ShiftedSigmas(levels)))
