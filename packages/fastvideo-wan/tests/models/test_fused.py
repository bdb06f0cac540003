"""Each fused form against its definition in float64, with and without gradients."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo_wan.models.fused import gated_sum, inverse_norm, modulated_norm, normalize_and_rotate, tanh_gelu

EPS = 1e-6


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[True, False], ids=["grad", "no-grad"])
def grad_mode(request):
    with torch.set_grad_enabled(request.param):
        yield request.param


def assert_near(value, expected):
    torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("num_groups", [1, 2, 6])
def test_modulated_norm(grad_mode, num_groups):
    hidden = draw(2, 9, 8) * 3 + 1
    vector = (8,) if num_groups == 1 else (num_groups, 1, 8)
    scale, shift = draw(*vector, seed=1), draw(*vector, seed=2)
    wide = hidden.double()
    normed = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, keepdim=True, unbiased=False) + EPS).sqrt()
    expected = normed.view(num_groups, -1, 8) * scale.double() + shift.double()
    assert_near(modulated_norm(hidden, scale, shift, EPS), expected.view(2, 9, 8))


@pytest.mark.parametrize("num_groups", [1, 2, 6])
@pytest.mark.parametrize("may_overwrite", [True, False])
def test_gated_sum(grad_mode, num_groups, may_overwrite):
    hidden, update = draw(2, 9, 8), draw(2, 9, 8, seed=1)
    gate = draw(*((8,) if num_groups == 1 else (num_groups, 1, 8)), seed=2)
    before = hidden.clone()
    grouped = (num_groups, -1, 8)
    expected = before.double().view(grouped) + update.double().view(grouped) * gate.double()
    result = gated_sum(hidden, update, gate, may_overwrite=may_overwrite)
    assert_near(result, expected.view(2, 9, 8))
    is_overwritten = result.data_ptr() == hidden.data_ptr()
    assert is_overwritten == (may_overwrite and not grad_mode)
    assert is_overwritten or torch.equal(hidden, before)


def test_inverse_norm_is_an_rms_norms_factor():
    tokens = draw(2, 3, 10)
    expected = 1 / (tokens.double().square().mean(-1, keepdim=True) + EPS).sqrt()
    assert_near(inverse_norm(tokens, EPS) * math.sqrt(10), expected)


def test_normalize_and_rotate(grad_mode):
    tokens, weight = draw(2, 5, 12), draw(12, seed=1)
    angles = draw(5, 1, 3, seed=2).double()
    wide = tokens.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    even, odd = normed.unflatten(-1, (2, 3, 2)).unbind(-1)
    rotated = [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()]
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64) * math.sqrt(12)
    assert_near(normalize_and_rotate(tokens, weight, EPS, turns), torch.stack(rotated, dim=-1).flatten(-2))


def test_tanh_gelu(grad_mode):
    hidden = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -50.0, 50.0, 1e-20])])
    wide = hidden.double()
    expected = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert_near(tanh_gelu(hidden.clone()), expected)


def test_tanh_gelu_of_huge_values_stays_finite():
    with torch.no_grad():
        assert tanh_gelu(torch.tensor([-1e12, 1e12])).tolist() == [0, pytest.approx(1e12)]
