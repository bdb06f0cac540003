"""Where the parts of a denoise step are put: what a request starts with is on the CPU, the weights may be elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fastvideo_wan.loops.denoise_step import _model_input, _timesteps

LATENTS = torch.zeros(1, 4, 3, 4, 8)


def transformer(device, patch=(1, 2, 2)):
    weight = torch.zeros(2, 2, device=device, dtype=torch.bfloat16)
    return SimpleNamespace(patch_embedding=SimpleNamespace(weight=weight), config=SimpleNamespace(patch_size=patch))


def payload(**fields):
    schedule = SimpleNamespace(timesteps=torch.tensor([900, 500]))
    given = {"latents_1CTHW": LATENTS, "condition_1CTHW": None, "num_known": 0, "expand_timesteps": False}
    return SimpleNamespace(schedule=schedule, sampler_step=0, **{**given, **fields})


# Tensors on the meta device refuse to meet those of another one, as an accelerator's do.
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("fields", "channels"),
    [
        ({}, 4),
        ({"condition_1CTHW": torch.zeros(1, 6, 3, 4, 8)}, 10),
        ({"condition_1CTHW": torch.zeros(1, 4, 1, 4, 8), "num_known": 1, "expand_timesteps": True}, 4),
    ],
    ids=["text", "channels", "first-frame"],
)
@pytest.mark.parametrize("is_exact", [False, True])
def test_everything_meets_where_the_weights_are(device, fields, channels, is_exact):
    model, given = transformer(device), payload(**fields)
    value = _model_input(model, given)
    assert (value.device.type, value.dtype, value.shape[1]) == (device, torch.bfloat16, channels)
    assert _timesteps(model, given, is_exact=is_exact).device.type == device


@pytest.mark.parametrize(("patch", "tokens"), [((1, 2, 2), 3 * 2 * 4), ((1, 1, 2), 3 * 4 * 4), ((1, 4, 4), 3 * 1 * 2)])
def test_tokens_of_known_frames_have_no_noise(patch, tokens):
    known = payload(condition_1CTHW=torch.zeros(1, 4, 1, 4, 8), num_known=1, expand_timesteps=True)
    (times,) = _timesteps(transformer("cpu", patch), known, is_exact=False)
    assert times.tolist() == [0.0] * (tokens // 3) + [900.0] * (tokens - tokens // 3)
