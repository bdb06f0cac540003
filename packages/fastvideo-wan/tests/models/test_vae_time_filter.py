"""Convolutions filtered in time against torch's own convolution, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fastvideo_wan.models import vae_time_filter
from fastvideo_wan.models.vae_time_filter import conv_three_frames, filter_weights, pays_to_filter


def draw(num_frames, *, starts_clip, num_rows=2, requires_grad=False):
    generator = torch.Generator().manual_seed(num_frames)
    joined = torch.randn(num_rows, 3, num_frames + 2, 4, 5, generator=generator, dtype=torch.float64)
    if starts_clip:
        joined[:, :, :2] = 0
    weight = torch.randn(4, 3, 3, 3, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    return [tensor.requires_grad_(requires_grad) for tensor in (joined, weight, bias)]


@pytest.mark.parametrize("group_bytes", [1, 1 << 20])
@pytest.mark.parametrize("starts_clip", [False, True])
@pytest.mark.parametrize("num_frames", [2, 3, 4, 7])
def test_filtering_is_convolving(num_frames, starts_clip, group_bytes, monkeypatch):
    monkeypatch.setattr(vae_time_filter, "GROUP_BYTES", group_bytes)
    joined, weight, bias = draw(num_frames, starts_clip=starts_clip)
    expected = F.conv3d(joined, weight, bias, padding=(0, 1, 1))
    with torch.no_grad():
        torch.testing.assert_close(conv_three_frames(joined, weight, bias, starts_clip=starts_clip), expected)


@pytest.mark.parametrize("starts_clip", [False, True])
@pytest.mark.parametrize("num_frames", [2, 3, 5])
def test_gradients_are_the_convolutions(num_frames, starts_clip):
    inputs = draw(num_frames, starts_clip=starts_clip, requires_grad=True)
    filtered = conv_three_frames(*inputs, starts_clip=starts_clip)
    plain = F.conv3d(*inputs, padding=(0, 1, 1))
    direction = torch.randn_like(plain)
    ours = list(torch.autograd.grad(filtered, inputs, direction))
    theirs = list(torch.autograd.grad(plain, inputs, direction))
    if starts_clip and num_frames % 2:
        # What stands for zeros has no gradient to pass on where it was left out.
        ours[0], theirs[0] = ours[0][:, :, 2:], theirs[0][:, :, 2:]
    torch.testing.assert_close(filtered, plain)
    torch.testing.assert_close(ours, theirs)


def test_kernels_of_a_static_clip_add_up():
    # Frames that do not change are filtered to (0, 2 d, 0, 0): half the sum of the taps must remain.
    weight = torch.arange(3.0).view(1, 1, 3, 1, 1)
    assert filter_weights(weight)[1].item() == 1.5


def test_small_chunks_are_not_filtered():
    weight = torch.zeros(48, 48, 3, 3, 3)
    assert pays_to_filter(torch.zeros(1, 48, 6, 32, 32), weight) == torch.backends.mkldnn.is_available()
    assert not pays_to_filter(torch.zeros(1, 48, 6, 8, 8), weight)
    assert not pays_to_filter(torch.zeros(1, 48, 3, 64, 64), weight)
    assert not pays_to_filter(torch.zeros(1, 48, 6, 32, 32), weight[:, :, :, 1:2, 1:2])
    assert not pays_to_filter(torch.zeros(1, 48, 6, 32, 32), weight[:24])
    assert not pays_to_filter(torch.zeros(1, 48, 6, 32, 32, dtype=torch.float64), weight.double())
