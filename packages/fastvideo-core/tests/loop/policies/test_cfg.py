"""Guidance: branches, combinations, and rows of many requests."""

from __future__ import annotations

import pytest
import torch
from diffusers.guiders.classifier_free_zero_star_guidance import cfg_zero_star_scale
from diffusers.guiders.guider_utils import rescale_noise_cfg

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.cfg import (
    COND,
    GUIDANCE_KINDS,
    UNCOND,
    BranchRow,
    ClassifierFreeGuidance,
    EmbeddedGuidance,
    GuidancePolicy,
    NoGuidance,
    RescaledGuidance,
    ZeroStarGuidance,
    combine_rows,
    plan_rows,
    resolve_guidance,
)

SHAPE = (3, 4, 2, 5, 5)


@pytest.fixture
def outputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(SHAPE, generator=generator) for name in (COND, UNCOND)}


@pytest.mark.parametrize("scale", [1.5, 4.1, 5.0, -2.0])
def test_combination_equals_the_reference_expression(outputs, scale):
    cond, uncond = outputs[COND], outputs[UNCOND]
    expected = uncond + scale * (cond - uncond)
    assert torch.equal(ClassifierFreeGuidance().combine(outputs, scale), expected)
    by_row = torch.full((3,), scale, dtype=torch.float32)
    assert torch.equal(ClassifierFreeGuidance("batched").combine(outputs, by_row), expected)


def test_scales_by_row(outputs):
    scales = [1.0, 3.5, 7.0]
    together = ClassifierFreeGuidance().combine(outputs, torch.tensor(scales))
    for i, scale in enumerate(scales):
        row = {name: value[i : i + 1] for name, value in outputs.items()}
        assert torch.equal(together[i : i + 1], ClassifierFreeGuidance().combine(row, scale))


def test_scales_by_row_keep_bfloat16(outputs):
    half = {name: value.bfloat16() for name, value in outputs.items()}
    result = ClassifierFreeGuidance().combine(half, torch.tensor([2.0, 3.0, 4.0]))
    assert result.dtype == torch.bfloat16
    expected = outputs[UNCOND] + torch.tensor([2.0, 3.0, 4.0]).view(3, 1, 1, 1, 1) * (outputs[COND] - outputs[UNCOND])
    torch.testing.assert_close(result.float(), expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("scale", "active_when", "expected"),
    [
        (5.0, "above_one", (COND, UNCOND)),
        (1.0, "above_one", (COND,)),
        (0.5, "above_one", (COND,)),
        (1.0, "not_one", (COND,)),
        (0.5, "not_one", (COND, UNCOND)),
    ],
)
def test_branches_follow_the_scale(scale, active_when, expected):
    assert ClassifierFreeGuidance(active_when=active_when).branches(scale) == expected


@pytest.mark.parametrize("kind", ["sequential", "batched", "rescale", "cfg_zero"])
def test_one_branch_is_taken_as_it_is(outputs, kind):
    policy = resolve_guidance(kind, 5.0, rescale=0.7, zero_init_steps=2)
    assert policy.combine({COND: outputs[COND]}, 5.0, 0) is outputs[COND]


@pytest.mark.parametrize("rescale", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("scale", [2.0, 7.5])
def test_rescale_equals_the_reference(outputs, scale, rescale):
    plain = outputs[UNCOND] + scale * (outputs[COND] - outputs[UNCOND])
    expected = rescale_noise_cfg(plain, outputs[COND], rescale)
    assert torch.equal(RescaledGuidance(rescale=rescale).combine(outputs, scale), expected)


def test_full_rescale_restores_the_standard_deviation(outputs):
    guided = RescaledGuidance(rescale=1.0).combine(outputs, 9.0)
    torch.testing.assert_close(guided.flatten(1).std(dim=1), outputs[COND].flatten(1).std(dim=1))


def test_zero_star_equals_the_reference(outputs):
    cond, uncond = outputs[COND], outputs[UNCOND]
    alpha = cfg_zero_star_scale(cond.flatten(1), uncond.flatten(1)).view(3, 1, 1, 1, 1)
    expected = uncond * alpha + 4.0 * (cond - uncond * alpha)
    assert torch.equal(ZeroStarGuidance().combine(outputs, 4.0, 3), expected)


def test_zero_star_projects_the_unconditional_output(outputs):
    """The scaled unconditional output is the projection of the conditional one: the rest is orthogonal to it."""
    cond, uncond = outputs[COND].double(), outputs[UNCOND].double()
    at_zero = ZeroStarGuidance().combine({COND: cond, UNCOND: uncond}, 0.0)
    rest = (cond - at_zero).flatten(1)
    assert (rest * uncond.flatten(1)).sum(dim=1).abs().max() < 1e-4


def test_zero_star_stands_still_at_the_start(outputs):
    policy = ZeroStarGuidance(zero_init_steps=2)
    moving = ZeroStarGuidance().combine(outputs, 4.0)
    assert not policy.combine(outputs, 4.0, 1).any()
    assert torch.equal(policy.combine(outputs, 4.0, 2), moving)
    mixed = policy.combine(outputs, 4.0, [0, 5, 1])
    assert not mixed[0].any() and not mixed[2].any()
    assert torch.equal(mixed[1], moving[1])


def test_embedded_guidance_rides_in_the_forward(outputs):
    policy = EmbeddedGuidance()
    assert policy.branches(6.0) == (COND,)
    assert policy.forward_guidance(6.0) == 6.0
    assert policy.combine({COND: outputs[COND]}, 6.0) is outputs[COND]
    assert NoGuidance().forward_guidance(6.0) is None
    assert ClassifierFreeGuidance().forward_guidance(6.0) is None


def test_combination_is_differentiable(outputs):
    for policy in (ClassifierFreeGuidance(), RescaledGuidance(rescale=0.5), ZeroStarGuidance()):
        leaves = {name: value.clone().requires_grad_() for name, value in outputs.items()}
        policy.combine(leaves, torch.tensor([2.0, 3.0, 4.0]), [0, 1, 2]).square().sum().backward()
        assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves.values())


def test_rows_of_one_branch_lie_together():
    rows = plan_rows([(COND, UNCOND), (COND,), (COND, UNCOND)])
    assert rows == (
        BranchRow(0, COND),
        BranchRow(1, COND),
        BranchRow(2, COND),
        BranchRow(0, UNCOND),
        BranchRow(2, UNCOND),
    )


def combine_alone(policy: GuidancePolicy, outputs: torch.Tensor, places: dict[str, int], scale: float, step: int):
    branches = {name: outputs[place : place + 1] for name, place in places.items()}
    return policy.combine(branches, scale, step)[0]


@pytest.mark.parametrize(
    "policies",
    [
        [ClassifierFreeGuidance("batched")] * 3,
        [NoGuidance(), ClassifierFreeGuidance("batched"), NoGuidance()],
        [RescaledGuidance(rescale=0.5), ZeroStarGuidance(zero_init_steps=4), ClassifierFreeGuidance()],
        [NoGuidance()] * 3,
    ],
)
def test_rows_of_many_requests_combine_as_each_alone(policies):
    scales, steps = [2.0, 3.5, 7.0], [0, 3, 9]
    rows = plan_rows([policy.branches(scale) for policy, scale in zip(policies, scales, strict=True)])
    outputs = torch.randn(len(rows), *SHAPE[1:], generator=torch.Generator().manual_seed(2))
    combined = combine_rows(policies, rows, outputs, scales, steps)
    assert combined.shape == (3, *SHAPE[1:])
    for i, policy in enumerate(policies):
        places = {row.branch: place for place, row in enumerate(rows) if row.request == i}
        assert torch.equal(combined[i], combine_alone(policy, outputs, places, scales[i], steps[i]))


@pytest.mark.parametrize(
    ("kind", "scale", "expected"),
    [
        ("none", None, NoGuidance()),
        ("none", 1.0, NoGuidance()),
        ("sequential", 5.0, ClassifierFreeGuidance("sequential")),
        ("batched", 5.0, ClassifierFreeGuidance("batched")),
        ("batched", 1.0, NoGuidance()),
        ("sequential", 0.0, NoGuidance()),
        ("rescale", 5.0, RescaledGuidance("sequential", "above_one", 0.7)),
        ("cfg_zero", 5.0, ZeroStarGuidance("sequential", "above_one", 1)),
        ("embedded", 1.0, EmbeddedGuidance()),
    ],
)
def test_resolution(kind, scale, expected):
    policy = resolve_guidance(kind, scale, rescale=0.7, zero_init_steps=1)
    assert policy == expected and type(policy) is type(expected)
    assert isinstance(policy, GuidancePolicy)


def test_dispatch_and_threshold_can_be_chosen():
    policy = resolve_guidance("cfg_zero", 0.5, dispatch="batched", active_when="not_one")
    assert policy == ZeroStarGuidance("batched", "not_one", 0)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (
            "none",
            {"guidance_scale": 5.0},
            "guidance_scale=5.0: the model takes no guidance; allowed: 1.0; nearest: 1.0",
        ),
        ("sequential", {"guidance_scale": None}, "guidance_scale=None: a value is needed"),
        ("sequential", {"guidance_scale": float("nan")}, "guidance_scale=nan: not a finite number"),
        ("rescale", {"guidance_scale": 5.0, "rescale": 1.5}, "guidance_rescale=1.5: .*nearest: 1.0"),
        ("cfgzero", {"guidance_scale": 5.0}, "guidance='cfgzero': .*nearest: cfg_zero"),
    ],
)
def test_bad_guidance_is_refused(kind, arguments, message):
    with pytest.raises(ParameterError, match=message):
        resolve_guidance(kind, **arguments)


def test_every_kind_resolves():
    scales = {kind: 1.0 if kind == "none" else 5.0 for kind in GUIDANCE_KINDS}
    assert all(isinstance(resolve_guidance(kind, scale), GuidancePolicy) for kind, scale in scales.items())
