"""Layout, scale, formats and widths, against torch's own attention through a kernel of plain operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastvideo_core.errors import ExecutionError
from fastvideo_flashattn import attention
from fastvideo_flashattn.availability import why_not


def plain(q, k, v, scale):
    """Softmax attention in double precision over (B, S, N, K), as the kernels' documentation describes theirs."""
    logits = torch.einsum("bsnk,blnk->bnsl", q.double(), k.double()) * scale
    return torch.einsum("bnsl,blnk->bsnk", logits.softmax(-1), v.double()).to(q.dtype)


def parts(width, *, num_queries=7, num_keys=11, dtype=torch.bfloat16, device="cpu"):
    generator = torch.Generator().manual_seed(width)
    shapes = [(2, num_queries, 3, width), (2, num_keys, 3, width), (2, num_keys, 3, width)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def torchs_own(query, key, value):
    mixed = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)))
    return mixed.transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [8, 12, 64, 128, 256])
@pytest.mark.parametrize(("number", "function"), [(2, attention.flash2), (3, attention.flash3)])
def test_it_gives_what_torchs_own_gives(number, function, width, dtype, kernel):
    calls = kernel(number, plain)
    query, key, value = parts(width, dtype=dtype)
    mixed = function(query, key, value)
    assert (mixed.shape, mixed.dtype) == (query.shape, dtype)
    torch.testing.assert_close(mixed, torchs_own(query, key, value), rtol=2e-2, atol=2e-2)
    (q, k, v, named), *_ = calls
    assert all(part.shape[-1] % 8 == 0 and part.stride(-1) == 1 for part in (q, k, v))
    # The scale is that of the true width, whatever was added to it.
    assert named["softmax_scale"] == pytest.approx(width**-0.5)
    assert set(named) == {"softmax_scale", "causal"} | ({"dropout_p"} if number == 2 else set())
    assert not named["causal"]


def test_views_of_another_layout_are_read_right(kernel):
    kernel(2, plain)
    query, key, value = (part.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1) for part in parts(16))
    assert query.stride(-1) != 1
    torch.testing.assert_close(attention.flash2(query, key, value), torchs_own(query, key, value), rtol=2e-2, atol=2e-2)


def test_first_releases_of_version_3_give_sums_too(kernel):
    kernel(3, lambda q, k, v, scale: (plain(q, k, v, scale), torch.zeros(1)))
    query, key, value = parts(16)
    assert torch.equal(attention.flash3(query, key, value), plain(query, key, value, 0.25))


def test_gradients_go_through(kernel):
    kernel(2, plain)
    query, key, value = (part.requires_grad_() for part in parts(12))
    attention.flash2(query, key, value).sum().backward()
    assert all(part.grad.shape == part.shape for part in (query, key, value))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda q, k, v: (q.float(), k.float(), v.float()), "query is torch.float32; allowed: bfloat16 or float16"),
        (lambda q, k, v: (q, k, v.half()), "value is torch.float16"),
        (lambda q, k, v: (q, k[0], v), r"key has shape \(11, 3, 264\)"),
        (lambda q, k, v: (q, k, v), "heads are 264 wide; allowed: 256 at most"),
        (lambda q, k, v: (q[..., :8], k[..., :16], v[..., :16]), "do not belong together"),
        (lambda q, k, v: (q[..., :8], k[..., :8], v[:, :3, :, :8]), "do not belong together"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(change, why, kernel):
    calls = kernel(2, plain)
    with pytest.raises(ExecutionError, match=why):
        attention.flash2(*change(*parts(264)))
    assert not calls


@pytest.mark.parametrize(("capability", "number"), [((9, 0), 3), ((8, 0), 2), ((12, 0), 2)])
def test_the_newest_that_can_run_is_taken(capability, number, releases, device, kernel):
    releases |= {"flash-attn": "2.8.3", "flash-attn-3": "3.0.0"}
    device(capability)
    kernel(2, lambda q, k, v, scale: torch.full_like(q, 2.0))
    kernel(3, lambda q, k, v, scale: torch.full_like(q, 3.0))
    assert attention.flash(*parts(16)).unique().tolist() == [number]


@pytest.mark.gpu
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("width", [12, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernels_themselves_give_what_torchs_own_gives(number, width, dtype):
    if (reason := why_not(number)) is not None:
        pytest.skip(reason)
    query, key, value = parts(width, num_queries=300, num_keys=517, dtype=dtype, device="cuda")
    mixed = {2: attention.flash2, 3: attention.flash3}[number](query, key, value)
    exact = plain(query, key, value, width**-0.5)
    # Both round to the format once more than the exact result: no further off than a few of its steps.
    torch.testing.assert_close(mixed, exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mixed, torchs_own(query, key, value), rtol=2e-2, atol=2e-2)
