"""Conditioning tensors against what diffusers' Wan image-to-video pipeline computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from diffusers import WanImageToVideoPipeline

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.conditioning import (
    blend_known_frames,
    concat_condition,
    image_condition_video,
    image_mask,
    known_frames_mask,
    num_latent_frames,
    pad_text,
    token_timesteps,
)


class FakeVae:
    """Records the video it is to encode; its latents are a fixed function of the video's mean."""

    dtype = torch.float32
    config = SimpleNamespace(z_dim=4, latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.0, 2.0, 0.5, 1.5])

    def __init__(self, height: int, width: int) -> None:
        self.size, self.video = (height, width), torch.empty(0)

    def parameters(self):
        return iter([torch.zeros(1)])

    def encode(self, video: torch.Tensor) -> SimpleNamespace:
        self.video = video
        frames = (video.shape[2] - 1) // 4 + 1
        latents = torch.sin(torch.arange(4 * frames * self.size[0] * self.size[1], dtype=torch.float32))
        return SimpleNamespace(latents=latents.view(1, 4, frames, *self.size))


def reference(monkeypatch, *, num_frames: int, batch: int = 1, last=None, expand_timesteps: bool = False):
    """Call the pipeline's own `prepare_latents`, without the pipeline's models."""
    height, width = 32, 48
    vae = FakeVae(height // 8, width // 8)
    pipeline = SimpleNamespace(
        vae=vae,
        vae_scale_factor_temporal=4,
        vae_scale_factor_spatial=8,
        config=SimpleNamespace(expand_timesteps=expand_timesteps),
    )
    module = "diffusers.pipelines.wan.pipeline_wan_i2v"
    monkeypatch.setattr(f"{module}.get_module_execution_device", lambda _: torch.device("cpu"))
    image = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(1)) * 2 - 1
    result = WanImageToVideoPipeline.prepare_latents(
        pipeline, image, batch, 4, height, width, num_frames, torch.float32, torch.device("cpu"),
        torch.Generator().manual_seed(0), None, last,
    )  # fmt: skip
    return image, vae, result


def normalized(vae: FakeVae, video: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(v).view(1, 4, 1, 1, 1) for v in (vae.config.latents_mean, vae.config.latents_std))
    return (vae.encode(video).latents - mean) * (1.0 / std)


@pytest.mark.parametrize(
    ("num_frames", "has_last"), [(1, False), (5, False), (9, False), (17, False), (81, False), (5, True), (17, True)]
)
def test_image_condition_equals_the_pipeline(monkeypatch, num_frames, has_last):
    last = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(2)) if has_last else None
    image, vae, (_, expected) = reference(monkeypatch, num_frames=num_frames, batch=2, last=last)

    video = image_condition_video(image, num_frames, last)
    assert torch.equal(video, vae.video)
    mask = image_mask(num_frames, height=4, width=6, has_last_frame=has_last)
    condition = normalized(vae, video).repeat(2, 1, 1, 1, 1)
    assert torch.equal(concat_condition(mask, condition), expected)


@pytest.mark.parametrize("num_frames", [5, 17])
def test_known_frame_mask_equals_the_pipeline(monkeypatch, num_frames):
    """TI2V-5B: the mask has one channel and is zero on the first frame."""
    image, vae, (latents, condition, mask) = reference(monkeypatch, num_frames=num_frames, expand_timesteps=True)
    frames = num_latent_frames(num_frames, 4)
    ours = known_frames_mask(frames, height=4, width=6)
    assert torch.equal(ours, mask)
    assert torch.equal(image_condition_video(image, 1), vae.video)
    # The next two are the pipeline's own expressions; it has no function for them.
    blended = (1 - mask) * condition + mask * latents
    assert torch.equal(blend_known_frames(ours, condition, latents), blended)
    for timestep in (torch.tensor(999), torch.tensor(517.25)):
        expected = (mask[0][0][:, ::2, ::2] * timestep).flatten().unsqueeze(0)
        assert torch.equal(token_timesteps(ours, timestep), expected)
        assert torch.equal(token_timesteps(ours, float(timestep)), expected)
        assert expected.shape == (1, frames * 2 * 3)


def test_blend_keeps_the_known_frame():
    mask = known_frames_mask(3, height=2, width=2)
    condition, latents = torch.full((1, 4, 1, 2, 2), 7.0), torch.randn(1, 4, 3, 2, 2)
    blended = blend_known_frames(mask, condition, latents)
    assert torch.equal(blended[:, :, 0], condition[:, :, 0])
    assert torch.equal(blended[:, :, 1:], latents[:, :, 1:])


def test_text_to_video_has_no_known_frame():
    mask = known_frames_mask(3, height=4, width=4, num_known=0)
    assert bool((mask == 1).all())
    assert token_timesteps(mask, 250.0).tolist() == [[250.0] * 12]


def test_several_known_frames_and_other_patches():
    mask = known_frames_mask(4, height=4, width=4, num_known=2)
    assert token_timesteps(mask, 3.0, patch=(1, 4, 2)).tolist() == [[0.0] * 4 + [3.0] * 4]


@pytest.mark.parametrize("temporal_factor", [2, 4, 8])
def test_mask_marks_all_channels_of_the_first_latent_frame(temporal_factor):
    mask = image_mask(2 * temporal_factor + 1, height=2, width=3, temporal_factor=temporal_factor)
    assert mask.shape == (1, temporal_factor, 3, 2, 3)
    assert bool((mask[:, :, 0] == 1).all()) and not mask[:, :, 1:].any()


def test_mask_of_a_last_frame_marks_its_last_channel():
    mask = image_mask(9, height=1, width=1, has_last_frame=True)[0, :, :, 0, 0]
    assert mask.T.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(("num_frames", "nearest"), [(80, 81), (82, 81), (4, 5), (2, 1), (0, 1), (-4, 1)])
def test_frames_off_the_grid_are_refused(num_frames, nearest):
    with pytest.raises(ParameterError, match=r"num_frames=.*allowed: 4k \+ 1") as caught:
        num_latent_frames(num_frames, 4)
    assert caught.value.nearest == nearest


def test_more_known_frames_than_frames_are_refused():
    image = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ParameterError, match="num_frames=1: too few frames; allowed: at least 2"):
        image_condition_video(image, 1, image)


def test_text_equals_the_pipelines_padding():
    embeddings = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(4))
    lengths = [5, 12]
    padded = pad_text(embeddings, lengths, 16)
    rows = [row[:count] for row, count in zip(embeddings, lengths, strict=True)]
    expected = torch.stack([torch.cat([row, row.new_zeros(16 - row.size(0), row.size(1))]) for row in rows])
    assert torch.equal(padded, expected)
    assert padded.untyped_storage().data_ptr() != embeddings.untyped_storage().data_ptr()


def test_long_text_is_refused():
    with pytest.raises(ParameterError, match="num_tokens=9: the prompt is too long; allowed: at most 8; nearest: 8"):
        pad_text(torch.zeros(1, 12, 2), [9], 8)
