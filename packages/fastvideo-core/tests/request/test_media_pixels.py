from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import torch
from diffusers.video_processor import VideoProcessor

from fastvideo_core.errors import NonFiniteError, ParameterError
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.request.media.pixels import (
    as_frames,
    frames_to_pixels,
    image_to_pixels,
    iter_frames,
    pixels_to_frames,
)


def some_pixels(dtype=torch.float32):
    pixels = torch.randn(3, 9, 16, 24, generator=torch.Generator().manual_seed(0)) * 0.7
    # Every place where rounding matters: both ends, the middle, and the levels themselves.
    pixels[0, 0].flatten()[:256] = torch.arange(256) / 255 * 2 - 1
    pixels[1, 0, 0, :4] = torch.tensor([-1.0, 1.0, 0.0, 3.0])
    return pixels.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_frames_equal_the_reference_to_the_bit(dtype):
    pixels = some_pixels(dtype)
    unit = VideoProcessor().postprocess_video(pixels[None], output_type="np")[0]
    # What the reference's export_to_video does with float frames.
    expected = (unit * 255).astype(np.uint8)
    assert np.array_equal(pixels_to_frames(pixels), expected)


def test_chunks_equal_the_whole():
    pixels = some_pixels()
    chunks = list(iter_frames(pixels, chunk_frames=4))
    assert [len(chunk) for chunk in chunks] == [4, 4, 1]
    assert np.array_equal(np.concatenate(chunks), pixels_to_frames(pixels))


def test_axes_go_where_they_belong():
    pixels = torch.full((3, 2, 4, 6), -1.0)
    pixels[2, 1, 3, 5] = 1.0
    frames = pixels_to_frames(pixels)
    assert frames.shape == (2, 4, 6, 3)
    assert frames[1, 3, 5].tolist() == [0, 0, 255]
    assert frames.sum() == 255


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_pixels_never_become_a_picture(bad):
    pixels = some_pixels()
    pixels[1, 3, 2, 2] = bad
    pixels[1, 5, 2, 2] = bad
    with pytest.raises(NonFiniteError, match="2 of 9 frames, first 3"):
        pixels_to_frames(pixels)


@pytest.mark.parametrize("pixels", [torch.zeros(3, 2, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4)])
def test_only_decoded_pixels_are_taken(pixels):
    with pytest.raises(ParameterError, match="floating point"):
        pixels_to_frames(pixels)


@pytest.mark.parametrize("size", [(24, 40), (31, 17), (120, 64)])
def test_image_input_equals_the_reference_to_the_bit(size):
    height, width = size
    image = np.random.default_rng(1).integers(0, 256, (53, 61, 3), dtype=np.uint8)
    processor = VideoProcessor(vae_scale_factor=1)
    expected = processor.preprocess(PIL.Image.fromarray(image), height=height, width=width)[0]
    ours = image_to_pixels(resize_image(image, height=height, width=width))
    assert ours.dtype == torch.float32
    assert torch.equal(ours, expected)


def test_video_input_equals_the_reference_to_the_bit():
    frames = np.random.default_rng(2).integers(0, 256, (3, 16, 24, 3), dtype=np.uint8)
    images = [PIL.Image.fromarray(frame) for frame in frames]
    expected = VideoProcessor().preprocess_video(images, height=16, width=24)[0]
    assert torch.equal(frames_to_pixels(frames), expected)


def test_tensors_are_frames_too():
    frames = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).reshape(2, 4, 4, 3)
    assert np.array_equal(as_frames(frames), frames.numpy())


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.uint8),
        np.zeros((2, 4, 4, 4), np.uint8),
        np.zeros((2, 0, 4, 3), np.uint8),
        np.zeros((3, 2, 4, 4), np.uint8),
    ],
)
def test_other_arrays_are_no_frames(frames):
    with pytest.raises(ParameterError, match=r"uint8 \(T, H, W, 3\)"):
        as_frames(frames)
