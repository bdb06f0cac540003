"""The methods' numbers against their formulas, written out again in float64 and from scalars."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.samplers import ScheduleSpec
from fastvideo_rl.methods.base import MethodContext, advantages
from fastvideo_rl.methods.dmd2 import DMD2, DMD2Item, DMD2Options, matching_gradient
from fastvideo_rl.methods.dpo import DPO, DPOOptions, preference_loss
from fastvideo_rl.methods.grpo import FlowGRPO, GRPOItem, GRPOOptions, clipped_policy_loss
from fastvideo_rl.methods.mix_grpo import MixGRPO, MixGRPOOptions
from fastvideo_rl.methods.nft import DiffusionNFT, NFTItem, NFTOptions, nft_losses, old_decay
from fastvideo_rl.methods.sft import FlowMatching, FlowMatchingOptions, SftItem
from fastvideo_rl.rollout.records import BehaviorRecord, Group
from fastvideo_rl.sde.samplers import SDE

SHAPE = (1, 2, 2, 3, 3)


class Linear:
    """Roles whose prediction is a linear function of the sample and the level: v = a x + b t + c."""

    def __init__(self, **coefficients):
        self.weights = {
            role: torch.tensor(values, dtype=torch.float64, requires_grad=role in ("student", "critic"))
            for role, values in coefficients.items()
        }
        self.asked = []

    def numbers(self):
        return {role: weights.tolist() for role, weights in self.weights.items()}

    def predict(self, role, queries, *, has_gradient=False):
        self.asked += [(role, query.timestep, query.guidance_scale, query.inputs) for query in queries]
        a, b, c = self.weights[role]
        found = torch.cat([a * query.sample_1CTHW + b * query.timestep / 1000 + c for query in queries])
        return found if has_gradient else found.detach()


def context(roles, step=0, seed=5, **more):
    return MethodContext(roles, step, 10, seed, torch.Generator().manual_seed(seed), **more)


def randoms(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(count)]


def noises(count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator).double() for _ in range(count)]


def group(rewards, schedule=None, steps=()):
    records = [
        BehaviorRecord("p", i, {}, {"text": i}, schedule, steps, x0, "v", None, reward=reward)
        for i, (reward, x0) in enumerate(zip(rewards, randoms(len(rewards)), strict=True))
    ]
    return Group("p", records)


def test_advantages_are_relative_to_the_group():
    rewards = [0.1, 0.4, 0.4, 0.9]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((one - mean) ** 2 for one in rewards) / 4)
    assert advantages(group(rewards), clip=5.0) == pytest.approx([(one - mean) / (std + 1e-4) for one in rewards])
    assert advantages(group([0.3, 0.3]), clip=5.0) == [0.0, 0.0]
    assert max(advantages(group([0.0] * 99 + [1.0]), clip=5.0)) == 5.0


def nft_formula(x0, t, v, old, p, beta):
    """Return one row's part of the loss, number by number."""
    parts = []
    for sign in (1, -1):
        velocity = beta * v + (1 - beta) * old if sign == 1 else (1 + beta) * old - beta * v
        guess = t["noisy"] - t["level"] * velocity
        gap = (guess - x0).flatten().tolist()
        weight = max(sum(abs(one) for one in gap) / len(gap), 1e-5)
        parts.append(sum(one * one for one in gap) / len(gap) / weight)
    return (p * parts[0] + (1 - p) * parts[1]) / beta


def test_nft_is_its_formula():
    roles = Linear(student=[0.3, 0.2, 0.1], old=[0.25, 0.1, 0.2], reference=[0.2, 0.3, 0.0])
    x0s, drawn = randoms(3), noises(3)
    items = [
        NFTItem(x0, sigma, sigma * 1000, None, p)
        for x0, sigma, p in zip(x0s, (0.9, 0.5, 0.2), (1.0, 0.3, 0.0), strict=True)
    ]
    loss = DiffusionNFT(NFTOptions(beta=0.2)).loss(items, context(roles))
    total, distance = 0.0, 0.0
    for item, noise in zip(items, drawn, strict=True):
        noisy = (1 - item.sigma) * item.x0_1CTHW + item.sigma * noise
        v, old, ref = (w[0] * noisy + w[1] * item.sigma + w[2] for w in roles.numbers().values())
        total += nft_formula(item.x0_1CTHW, {"noisy": noisy, "level": item.sigma}, v, old, item.goodness, 0.2) / 3
        distance += float(((v - ref) ** 2).mean()) / 3
    assert loss.value.item() == pytest.approx(5 * total + 1e-4 * distance, rel=1e-6)
    assert loss.metrics["deviation"] == pytest.approx(distance, rel=1e-6)
    roles.asked.clear()
    free = DiffusionNFT(NFTOptions(beta=0.2, reference_weight=0)).loss(items, context(roles))
    assert free.value.item() == pytest.approx(5 * total, rel=1e-6)
    assert {role for role, *_ in roles.asked} == {"student", "old"}


def test_nft_pulls_towards_good_samples_and_away_from_bad_ones():
    x0, noise = randoms(2)
    old = noise - x0 + 0.3  # it is off by 0.3 everywhere
    noisy, sigma = 0.5 * x0 + 0.5 * noise, torch.tensor(0.5).double()
    student = old.clone().requires_grad_(True)
    for part, sign in ((0, 1), (1, -1)):
        losses = nft_losses(x0, noisy, sigma, student, old, beta=0.1)
        (gradient,) = torch.autograd.grad(losses[part].sum(), student)
        assert (sign * gradient > 0).all(), (
            "down the gradient of the good part the error shrinks, of the bad one it grows"
        )


def test_nft_items_are_all_but_the_last_levels():
    class Schedule:
        sigma_values = tuple(1 - i / 25 for i in range(26))
        timestep_values = tuple(1000 * (1 - i / 25) for i in range(25))

    method = DiffusionNFT(NFTOptions())
    items = method.items([group([0.0, 1.0], Schedule())], context(None))
    assert len(items) == 2 * 24
    assert {item.timestep for item in items} == set(Schedule.timestep_values[:24])
    few = DiffusionNFT(NFTOptions(timesteps_per_sample=3)).items([group([0.0, 1.0], Schedule())], context(None))
    assert len(few) == 6
    assert sorted({item.goodness for item in items}) == pytest.approx([0.5 - 0.1, 0.5 + 0.1], abs=1e-3)


def test_the_old_copy_follows_as_published():
    assert [old_decay(0, step) for step in (0, 50)] == [0.0, 0.0]
    assert [old_decay(1, step) for step in (0, 100, 900)] == [0.0, 0.1, 0.5]
    assert [old_decay(2, step) for step in (74, 75, 85, 500)] == pytest.approx([0.0, 0.0, 0.075, 0.999])


def test_the_clipped_loss_is_its_formula():
    ratios, gains = [0.5, 0.95, 1.0, 1.05, 2.0], [1.0, -1.0, 2.0, -2.0, 1.0]
    want = sum(max(-g * r, -g * min(max(r, 0.9), 1.1)) for r, g in zip(ratios, gains, strict=True)) / 5
    found = clipped_policy_loss(torch.tensor(ratios).double(), torch.tensor(gains).double(), 0.1)
    assert float(found) == pytest.approx(want)


def transitions(count=2, scale=None):
    schedule = SDE.make_schedule(ScheduleSpec(4, options={"noise_level": 0.6}))
    samples = randoms(2 * count)
    return [
        GRPOItem(samples[2 * i], samples[2 * i + 1], schedule, i + 1, -1.0 - i, scale, None, 1.0 - 2 * i)
        for i in range(count)
    ]


def test_grpo_is_its_formula():
    roles, items = Linear(student=[0.3, 0.2, 0.1], reference=[0.2, 0.1, 0.0]), transitions()
    loss = FlowGRPO(GRPOOptions(noise_level=0.6, clip=0.05, reference_weight=0.5)).loss(items, context(roles))
    policy, divergence = 0.0, 0.0
    for item in items:
        sigma, after = (item.schedule.sigma_values[item.step_index + k] for k in (0, 1))
        dt, s = after - sigma, 0.6 * math.sqrt(sigma / (1 - sigma))
        std = s * math.sqrt(-dt)
        v, ref = (w[0] * item.sample_1CTHW + w[1] * sigma + w[2] for w in roles.numbers().values())
        means = [
            item.sample_1CTHW * (1 + s**2 * dt / (2 * sigma)) + one * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
            for one in (v, ref)
        ]
        density = (
            -((item.next_1CTHW - means[0]) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)
        ).mean()
        ratio = math.exp(float(density) - item.log_prob)
        policy += max(-item.advantage * ratio, -item.advantage * min(max(ratio, 0.95), 1.05)) / 2
        divergence += float(((means[0] - means[1]) ** 2).mean()) / (2 * std**2) / 2
    assert loss.metrics["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert loss.metrics["reference_kl"] == pytest.approx(divergence, rel=1e-5)
    assert loss.value.item() == pytest.approx(policy + 0.5 * divergence, rel=1e-5)


def test_grpo_asks_at_the_rollouts_own_times_and_guidance():
    roles, items = Linear(student=[0.3, 0.2, 0.1]), transitions(scale=4.0)
    FlowGRPO(GRPOOptions()).loss(items, context(roles))
    times = [item.schedule.timestep_values[item.step_index] for item in items]
    assert [(role, time, scale) for role, time, scale, _ in roles.asked] == [("student", time, 4.0) for time in times]


def test_windows_move_as_they_are_told():
    moving = MixGRPO(MixGRPOOptions(window=3, num_starts=4, shift_every=10, stride=2))
    assert [moving.first_of(step, 0) for step in (0, 9, 10, 20, 30)] == [0, 0, 2, 0, 2]
    drawn = MixGRPO(MixGRPOOptions(order="random", num_starts=4))
    assert [drawn.first_of(step, 1) for step in range(20)] == [drawn.first_of(step + 1, 0) for step in range(20)]
    assert {drawn.first_of(step, 0) for step in range(50)} == {0, 1, 2, 3}
    assert moving.rollout_parameters(10, 0, {}) == {
        "sampler": "sde", "sde_noise_level": 0.7, "sde_first_step": 2, "sde_num_steps": 3,
    }  # fmt: skip


def test_the_preference_loss_is_its_formula():
    student, reference = ([0.10, 0.30], [0.20, 0.10]), ([0.11, 0.29], [0.19, 0.12])
    rows = zip(*student, *reference, strict=True)
    want = [-math.log(1 / (1 + math.exp(0.5 * 200 * ((w - wr) - (b - br))))) for w, b, wr, br in rows]
    found = preference_loss(
        *[tuple(torch.tensor(one, dtype=torch.float64) for one in pair) for pair in (student, reference)], 200.0
    )
    assert float(found) == pytest.approx(sum(want) / 2, rel=1e-9)


def test_dpo_takes_best_and_worst_with_one_noise_and_level_for_both():
    roles = Linear(student=[0.3, 0.2, 0.1], reference=[0.2, 0.1, 0.0])
    method = DPO(DPOOptions(beta=50.0))
    some = group([0.3, 0.9, 0.1])
    ctx = context(roles)
    items = method.items([some, group([0.5, 0.5])], ctx)
    assert len(items) == 1
    assert items[0].better_1CTHW is some.records[1].latents_1CTHW
    assert items[0].worse_1CTHW is some.records[2].latents_1CTHW
    ctx.generator.manual_seed(5)
    loss = method.loss(items, ctx)
    (noise,), errors = noises(1), {}
    for role, w in roles.numbers().items():
        for name, x0 in (("w", items[0].better_1CTHW), ("l", items[0].worse_1CTHW)):
            x = (1 - items[0].sigma) * x0 + items[0].sigma * noise
            v = w[0] * x + w[1] * items[0].sigma + w[2]
            errors[role, name] = float(((v - (noise - x0)) ** 2).mean())
    gain = (errors["student", "w"] - errors["reference", "w"]) - (errors["student", "l"] - errors["reference", "l"])
    assert loss.value.item() == pytest.approx(math.log(1 + math.exp(25 * gain)), rel=1e-6)


def test_flow_matching_is_its_formula():
    roles, x0s, drawn = Linear(student=[0.3, 0.2, 0.1]), randoms(2), noises(2)
    items = [SftItem(x0, sigma, None) for x0, sigma in zip(x0s, (0.3, 0.8), strict=True)]
    loss = FlowMatching(FlowMatchingOptions()).loss(items, context(roles))
    want = 0.0
    for item, noise in zip(items, drawn, strict=True):
        x = (1 - item.sigma) * item.x0_1CTHW + item.sigma * noise
        want += float(((0.3 * x + 0.2 * item.sigma + 0.1 - (noise - item.x0_1CTHW)) ** 2).mean()) / 2
    assert loss.value.item() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("times", ["uniform", "logit_normal"])
def test_levels_follow_the_shift(times):
    records = group([0.0] * 400)
    plain, shifted = (
        [item.sigma for item in FlowMatching(FlowMatchingOptions(times=times, shift=s)).items([records], context(None))]
        for s in (1.0, 3.0)
    )
    assert shifted == pytest.approx([3 * one / (1 + 2 * one) for one in plain])
    assert sum(plain) / 400 == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("normalizer", ["sample", "batch"])
def test_the_matching_gradient_is_its_formula(normalizer):
    x0, fake, real = (torch.cat(randoms(2, seed)) for seed in range(3))
    found = matching_gradient(x0, fake, real, normalizer=normalizer)
    for row in range(2):
        among = slice(None) if normalizer == "batch" else slice(row, row + 1)
        scale = float((x0[among] - real[among]).abs().mean())
        torch.testing.assert_close(found[row], (fake[row] - real[row]) / scale)
    assert torch.equal(matching_gradient(x0, fake, x0, normalizer="sample").isfinite(), torch.ones_like(x0).bool())


def distil_items():
    x = randoms(2)
    made = [one - 0.75 * (0.3 * one + 0.2 * 0.75 + 0.1) for one in x]
    return [
        DMD2Item("p", x0, one, 0.75, 750.0, "own", level) for x0, one, level in zip(made, x, (0.4, 0.6), strict=True)
    ]


def test_the_students_gradient_is_the_difference_of_the_scores():
    roles, items = Linear(student=[0.3, 0.2, 0.1], critic=[0.1, 0.0, 0.2], teacher=[0.2, 0.1, 0.0]), distil_items()
    ctx = context(roles, step=4, teacher_inputs={"p": "teachers"})
    loss = DMD2(DMD2Options(guidance_scale=3.0)).loss(items, ctx)
    (gradient,) = torch.autograd.grad(loss.value, roles.weights["student"])
    want = torch.zeros(3, dtype=torch.float64)
    for item, noise in zip(items, noises(2), strict=True):
        v = 0.3 * item.sample_1CTHW + 0.2 * 0.75 + 0.1
        x0 = item.sample_1CTHW - 0.75 * v
        noisy = (1 - item.level) * x0 + item.level * noise
        fake = noisy - item.level * (0.1 * noisy + 0.2)
        real = noisy - item.level * (0.2 * noisy + 0.1 * item.level)
        direction = (fake - real) / (x0 - real).abs().mean()
        slopes = [-0.75 * item.sample_1CTHW, torch.full_like(x0, -0.75 * 0.75), torch.full_like(x0, -0.75)]
        want += torch.stack([(direction * slope).mean() for slope in slopes]) / 2
    torch.testing.assert_close(gradient, want, rtol=1e-6, atol=1e-9)
    asked = {(role, scale, inputs) for role, _, scale, inputs in roles.asked}
    assert asked == {("student", None, "own"), ("critic", None, "teachers"), ("teacher", 3.0, "teachers")}


def test_the_critic_learns_the_flow_of_the_students_samples():
    roles, items = Linear(student=[0.3, 0.2, 0.1], critic=[0.1, 0.0, 0.2]), distil_items()
    loss = DMD2(DMD2Options()).loss(items, context(roles, step=0, teacher_inputs={"p": "teachers"}))
    want = 0.0
    for item, noise in zip(items, noises(2), strict=True):
        x0 = item.sample_1CTHW - 0.75 * (0.3 * item.sample_1CTHW + 0.2 * 0.75 + 0.1)
        noisy = (1 - item.level) * x0 + item.level * noise
        want += float(((0.1 * noisy + 0.2 - (noise - x0)) ** 2).mean()) / 2
    assert loss.value.item() == pytest.approx(want, rel=1e-6)
    loss.value.backward()
    assert {role for role, *_ in roles.asked} == {"critic"}, "the student's prediction was recorded"


def test_all_steps_of_a_rollout_can_be_trained_on():
    class Schedule:
        sigma_values, timestep_values = (1.0, 0.9, 0.6, 0.0), (1000.0, 900.0, 600.0)

    steps = tuple(
        StepBehavior(index, "t", ("cond",), 1.0, *randoms(3, seed=index), None, "v") for index in range(3)
    )  # fmt: skip
    groups = [group([0.0, 0.0], Schedule(), steps)]
    every = DMD2(DMD2Options(steps_per_sample=None, shift=1.0)).items(groups, context(None))
    assert sorted(item.timestep for item in every) == [600.0, 600.0, 900.0, 900.0, 1000.0, 1000.0]
    for item in every:
        (step,) = [one for one in steps if one.sample_1CTHW is item.sample_1CTHW]
        torch.testing.assert_close(item.x0_1CTHW, step.sample_1CTHW - item.sigma * step.prediction_1CTHW)
    assert len({item.level for item in every}) == 6
    drawn = [DMD2(DMD2Options()).items(groups, context(None, seed=seed)) for seed in range(20)]
    assert all(len(items) == 2 and items[0].timestep == items[1].timestep for items in drawn)
    assert {items[0].timestep for items in drawn} == {1000.0, 900.0, 600.0}


def test_student_and_critic_take_turns():
    method = DMD2(DMD2Options(student_every=5))
    assert [method.player(step) for step in range(10)] == (["critic"] * 4 + ["student"]) * 2
