"""Guidance of a Wan request: which branches run, by whom, with which scale."""

from __future__ import annotations

import pytest

from fastvideo_core.errors import CardError, ParameterError
from fastvideo_wan.loops.guidance import guidance_of


def test_a_scale_above_one_has_two_branches():
    guided = guidance_of({"guidance": "batched"}, {"guidance_scale": 5.0})
    assert (guided.branches, guided.is_guided) == (("cond", "uncond"), True)
    assert not guidance_of({"guidance": "batched"}, {"guidance_scale": 1.0}).is_guided


def test_exact_requests_run_branch_after_branch():
    assert guidance_of({}, {"guidance_scale": 5.0}).policy.dispatch == "batched"
    assert guidance_of({}, {"guidance_scale": 5.0}, is_exact=True).policy.dispatch == "sequential"


@pytest.mark.parametrize(
    ("timestep", "component", "scale"),
    [(900.0, "transformer", 4.0), (875.0, "transformer", 4.0), (874.0, "transformer_2", 3.0)],
)
def test_each_expert_has_its_scale(timestep, component, scale):
    experts = guidance_of({"boundary_ratio": 0.875}, {"guidance_scale": 4.0, "guidance_scale_2": 3.0}).experts
    expert = experts.route(timestep, 0)
    assert (expert.component, expert.guidance_scale) == (component, scale)


def test_weights_without_guidance_have_one_branch():
    assert guidance_of({"guidance": "none"}, {}).branches == ("cond",)
    with pytest.raises(ParameterError, match="takes no guidance"):
        guidance_of({"guidance": "none"}, {"guidance_scale": 5.0})


def test_embedded_guidance_is_refused():
    with pytest.raises(CardError, match="take no guidance.*allowed: none, sequential, batched, rescale, cfg_zero"):
        guidance_of({"guidance": "embedded"}, {"guidance_scale": 5.0})
