"""The fast operations against the exact ones, in float64, with and without gradients."""

from __future__ import annotations

import pytest
import torch

from fastvideo_wan.models import vae_exact, vae_fast


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(name, *arguments, **options):
    """Run an operation of both modules, ours with and without gradients; fresh copies each time."""
    results = []
    for ops, has_gradients in ((vae_exact, False), (vae_fast, False), (vae_fast, True)):
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
        with torch.set_grad_enabled(has_gradients):
            results.append(getattr(ops, name)(*copies, **options))
    return results


def assert_all_close(results):
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], check_stride=False)


@pytest.mark.parametrize("num_past", [None, 0, 1, 2])
@pytest.mark.parametrize("num_frames", [1, 3])
def test_the_past_comes_first(num_frames, num_past):
    past = None if num_past is None else draw(2, 4, num_past, 3, 5, seed=1)
    x, gamma = draw(2, 4, num_frames, 3, 5), draw(4, 1, 1, 1, seed=2)
    for name, arguments in (("after", (past, x, 2)), ("norm_silu_after", (past, x, gamma, 2))):
        results = both(name, *arguments)
        assert_all_close([joined for joined, _ in results])
        assert results[0][0].shape[2] == num_frames + 2
        assert all(torch.equal(last, joined[:, :, -2:]) for joined, last in results[1:])


def test_vectors_of_zeros_stay_zeros():
    x, gamma = torch.zeros(1, 4, 1, 2, 2), torch.ones(4, 1, 1, 1)
    assert not vae_exact.norm_silu_after(None, x, gamma, 2)[0].any()
    with torch.no_grad():
        assert not vae_fast.norm_silu_after(None, x, gamma, 2)[0].any()


def test_the_norms_gradient():
    past, x = draw(2, 4, 2, 2, 3, seed=1).requires_grad_(), draw(2, 4, 3, 2, 3).requires_grad_()
    gamma = draw(4, 1, 1, 1, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda past, x, gamma: vae_fast.norm_silu_after(past, x, gamma, 2)[0], (past, x, gamma)
    )


@pytest.mark.parametrize("starts_clip", [False, True])
@pytest.mark.parametrize(
    ("kernel", "num_frames", "stride"), [((3, 3, 3), 3, 1), ((3, 3, 3), 6, 1), ((1, 1, 1), 2, 1), ((3, 1, 1), 5, 2)]
)
def test_convolutions(kernel, num_frames, stride, starts_clip):
    x, weight, bias = draw(2, 4, num_frames, 5, 3), draw(6, 4, *kernel, seed=1), draw(6, seed=2)
    if starts_clip:
        x[:, :, : kernel[0] - 1] = 0
    assert_all_close(both("conv3d", x, weight, bias, stride, starts_clip))


def test_attention():
    weights = (draw(12, 4, 1, 1, seed=1), draw(12, seed=2)), (draw(4, 4, 1, 1, seed=3), draw(4, seed=4))
    assert_all_close(both("attend", draw(2, 4, 3, 2, 5), draw(4, 1, 1, seed=5), *weights))


@pytest.mark.parametrize("name", ["halve_space", "double_space"])
@pytest.mark.parametrize("size", [(4, 6), (2, 2), (3, 2)])
def test_sampling_in_space(name, size):
    assert_all_close(both(name, draw(2, 4, 3, *size), draw(5, 4, 3, 3, seed=1), draw(5, seed=2)))


def test_interleaving_frames():
    results = both("interleave", draw(2, 6, 3, 2, 2))
    assert_all_close(results)
    assert torch.equal(results[1][:, :, 3], draw(2, 6, 3, 2, 2)[:, 3:, 1])


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize(("dim", "out_dim"), [(4, 4), (4, 8), (8, 4)])
def test_averaging_down(dim, out_dim, time):
    y, x = draw(2, out_dim, 2, 2, 3, seed=1), draw(2, dim, 3 if time == 2 else 2, 4, 6)
    assert_all_close(both("add_average_down", y, x, time, 2))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize(("dim", "out_dim"), [(8, 8), (8, 4), (8, 2), (4, 8), (3, 6)])
def test_repeating_up(dim, out_dim, time, is_first):
    num_frames = 3 * time - (time - 1) * is_first
    y = draw(2, out_dim, num_frames, 4, 6, seed=1)
    assert_all_close(both("add_repeat_up", y, draw(2, dim, 3, 2, 3), time, 2, is_first=is_first))


def test_a_constant_clip_repeats_to_itself():
    y = torch.zeros(1, 2, 5, 4, 4)
    up = vae_fast.add_repeat_up(y, torch.full((1, 4, 3, 2, 2), 3.0), 2, 2, is_first=True)
    assert up.eq(3.0).all()
