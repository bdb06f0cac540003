"""Where the parts of a denoise step are put: what a request starts with is on the CPU, the weights may be elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fastvideo_wan.loops.denoise_step import _exact_timesteps, _fast_timesteps, _model_input

LATENTS = torch.zeros(1, 4, 3, 4, 8)


def transformer(device, patch=(1, 2, 2)):
    weight = torch.zeros(2, 2, device=device, dtype=torch.bfloat16)
    return SimpleNamespace(patch_embedding=SimpleNamespace(weight=weight), config=SimpleNamespace(patch_size=patch))


def payload(**fields):
    schedule = SimpleNamespace(timesteps=torch.tensor([900, 500]), timestep_values=(900.0, 500.0))
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
def test_everything_meets_where_the_weights_are(device, fields, channels):
    model, given = transformer(device), payload(**fields)
    value = _model_input(model, given)
    assert (value.device.type, value.dtype, value.shape[1]) == (device, torch.bfloat16, channels)
    assert _exact_timesteps(model, given).device.type == device
    assert _fast_timesteps(model, [given]).device.type == device


KNOWN = {"condition_1CTHW": torch.zeros(1, 4, 1, 4, 8), "num_known": 1, "expand_timesteps": True}


@pytest.mark.parametrize(("patch", "tokens"), [((1, 2, 2), 3 * 2 * 4), ((1, 1, 2), 3 * 4 * 4), ((1, 4, 4), 3 * 1 * 2)])
def test_tokens_of_known_frames_have_no_noise(patch, tokens):
    (times,) = _exact_timesteps(transformer("cpu", patch), payload(**KNOWN))
    assert times.tolist() == [0.0] * (tokens // 3) + [900.0] * (tokens - tokens // 3)


def test_a_frame_has_the_time_that_the_reference_gives_its_tokens():
    model, known = transformer("cpu"), payload(**KNOWN)
    (by_frame,) = _fast_timesteps(model, [known])
    (by_token,) = _exact_timesteps(model, known)
    assert torch.equal(by_frame.repeat_interleave(len(by_token) // 3), by_token)


def test_requests_with_and_without_known_frames_share_a_batch():
    free = payload(expand_timesteps=True)
    assert _fast_timesteps(transformer("cpu"), [free, free]).tolist() == [900.0, 900.0]
    mixed = _fast_timesteps(transformer("cpu"), [free, payload(**KNOWN)])
    assert mixed.tolist() == [[900.0, 900.0, 900.0], [0.0, 900.0, 900.0]]
