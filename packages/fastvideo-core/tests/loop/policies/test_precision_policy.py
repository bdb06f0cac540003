"""Where a denoise step casts, and where it does not."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.precision import PrecisionPlan, torch_dtype


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_names(name, dtype):
    assert torch_dtype(name) is dtype


@pytest.mark.parametrize("name", ["fp32", "float64", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(ParameterError, match=r"precision=.*allowed: float32, bfloat16, float16"):
        torch_dtype(name)
    with pytest.raises(ParameterError):
        PrecisionPlan(vae=name)


def test_latents_stay_float32_while_inputs_are_cast():
    plan = PrecisionPlan(transformer="bfloat16", vae="float16")
    latents = torch.randn(4, generator=torch.Generator().manual_seed(0))
    cast = plan.transformer_input(latents)
    assert cast.dtype == torch.bfloat16 and latents.dtype == torch.float32
    assert torch.equal(cast, latents.bfloat16())
    assert plan.vae_input(latents).dtype == torch.float16
    assert plan.latents(cast).dtype == torch.float32


def test_float32_casts_nothing():
    plan = PrecisionPlan("float32", "float32", "float32")
    latents = torch.zeros(3)
    assert plan.transformer_input(latents) is latents
    assert plan.vae_input(latents) is latents
    assert plan.latents(latents) is latents
