"""The exact convolution as one matrix product, against torch's own on sizes for which torch does the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastvideo_wan.models.vae_kernels import conv3d_as_product, is_matrix_product


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("kernel", [(3, 3, 3), (3, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("size", [(3, 4, 5), (4, 10, 10), (6, 34, 34), (3, 3, 3)])
@pytest.mark.parametrize("channels", [(3, 5), (24, 24), (48, 12)])
def test_a_product_has_the_bits_of_torchs_convolution(channels, size, kernel):
    x, weight, bias = draw(1, channels[0], *size), draw(channels[1], channels[0], *kernel), draw(channels[1])
    with torch.no_grad():
        assert is_matrix_product(x, weight, bias)
        assert torch.equal(conv3d_as_product(x, weight, bias), F.conv3d(x, weight, bias))


@pytest.mark.parametrize("shape", [(2, 24, 4, 8, 8), (1, 96, 4, 80, 8)])
def test_other_convolutions_are_left_to_torch(shape):
    weight, bias = draw(8, shape[1], 3, 3, 3), draw(8)
    with torch.no_grad():
        assert not is_matrix_product(draw(*shape), weight, bias)


def test_gradients_are_left_to_torch():
    assert not is_matrix_product(draw(1, 4, 3, 4, 4), draw(8, 4, 3, 3, 3), draw(8))


def test_frames_that_do_not_lie_in_one_piece_are_left_to_torch():
    x = draw(1, 4, 6, 4, 4)[:, :, ::2]
    with torch.no_grad():
        assert not is_matrix_product(x, draw(8, 4, 3, 3, 3), draw(8))
