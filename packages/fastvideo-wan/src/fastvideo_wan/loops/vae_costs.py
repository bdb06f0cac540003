"""What passes through the VAE cost: operations and bytes of every convolution, and the most that is held at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fastvideo_core.loop.work import StepCost
from fastvideo_wan.models.vae_config import WanVAEConfig

__all__ = [
    "decode_cache_bytes",
    "decode_cost",
    "decode_peak_bytes",
    "decoded_bytes",
    "encode_cache_bytes",
    "encode_cost",
    "encode_peak_bytes",
]

_BYTES = 4
_MAX_PRODUCT_SIZE = 20480
"""Up to this many rows of all frames and channels torch convolves one clip as a product with a matrix of windows."""

_CHANNEL_BLOCK = 16
"""To whole blocks of so many channels oneDNN may copy what comes in and what comes out, where a CPU has AVX-512."""

_FILTER_BYTES = 32 << 20
"""What filtering in time holds besides, at most."""


_SPARE = 1.2
"""For what is held beside the largest convolution: earlier features, norms, the pixels that are handed on."""


@dataclass(frozen=True, slots=True)
class _Conv:
    """One convolution: frames, rows and columns that come out, channels, and the kernel's volume and frames."""

    frames: int
    rows: int
    columns: int
    dim_in: int
    dim_out: int
    kernel: int
    kernel_frames: int = 1

    @property
    def voxels(self) -> int:
        return self.frames * self.rows * self.columns


def decode_cost(config: WanVAEConfig, shape: Mapping[str, int]) -> StepCost:
    """Return the cost of decoding some latent frames.

    Args:
        config: The VAE.
        shape: Latent `frames`, `rows`, `columns`, and `first`: whether a clip begins with them.
    """
    return _cost(_decoder(config, shape))


def encode_cost(config: WanVAEConfig, shape: Mapping[str, int]) -> StepCost:
    """Return the cost of encoding some frames; `shape` counts pixels."""
    return _cost(_encoder(config, shape))


def decode_peak_bytes(config: WanVAEConfig, shape: Mapping[str, int], *, is_exact: bool) -> int:
    """Return the most bytes that decoding some latent frames, alone in its call, holds at a time."""
    return _peak(_decoder(config, shape), is_exact=is_exact)


def encode_peak_bytes(config: WanVAEConfig, shape: Mapping[str, int], *, is_exact: bool) -> int:
    """Return the most bytes that encoding some frames, alone in its call, holds at a time."""
    return _peak(_encoder(config, shape), is_exact=is_exact)


def decode_cache_bytes(config: WanVAEConfig, shape: Mapping[str, int]) -> int:
    """Return the bytes that the decoder remembers between chunks of a clip."""
    return _cache(_decoder(config, shape))


def decoded_bytes(config: WanVAEConfig, shape: Mapping[str, int]) -> int:
    """Return the bytes of some latent frames as pixels, one byte a channel; `shape` as for `decode_cost`."""
    frames = shape["frames"] * config.temporal_factor - int(bool(shape.get("first", 0))) * (config.temporal_factor - 1)
    return 3 * frames * shape["rows"] * shape["columns"] * config.spatial_factor**2


def encode_cache_bytes(config: WanVAEConfig, shape: Mapping[str, int]) -> int:
    """Return the bytes that the encoder remembers between chunks of a clip."""
    return _cache(_encoder(config, shape))


def _cost(convs: Iterator[_Conv]) -> StepCost:
    flops, weights, activations = 0.0, 0.0, 0.0
    for conv in convs:
        products = conv.kernel * conv.dim_in * conv.dim_out
        flops += 2.0 * products * conv.voxels
        weights += products
        activations += (conv.dim_in + conv.dim_out) * conv.voxels
    return StepCost(flops, weight_bytes=_BYTES * weights, activation_bytes=_BYTES * activations)


def _peak(convs: Iterator[_Conv], *, is_exact: bool) -> int:
    return int(_SPARE * max(_held(conv, is_exact=is_exact) for conv in convs))


def _held(conv: _Conv, *, is_exact: bool) -> int:
    """Return the bytes held during one convolution: a shortcut, the input with its past, the output, and a copy."""
    plane = conv.rows * conv.columns
    past = conv.kernel_frames - 1
    held = plane * (conv.dim_in * (2 * conv.frames + past) + 2 * conv.dim_out * conv.frames)
    if not is_exact:
        filtered = held + min(_FILTER_BYTES // _BYTES, held) * (conv.kernel_frames > 1)
        return _BYTES * max(filtered, conv.voxels * (conv.dim_in + _padded(conv.dim_in) + _padded(conv.dim_out)))
    padded = plane * conv.dim_in * (conv.frames + past)
    if conv.kernel > 1 and conv.dim_in * (conv.frames + past) * (conv.rows + 2) <= _MAX_PRODUCT_SIZE:
        padded += conv.kernel * conv.dim_in * conv.voxels
    return _BYTES * (held + padded)


def _padded(dim: int) -> int:
    return -(-dim // _CHANNEL_BLOCK) * _CHANNEL_BLOCK


def _cache(convs: Iterator[_Conv]) -> int:
    return sum(
        _BYTES * (conv.kernel_frames - 1) * conv.dim_in * conv.rows * conv.columns
        for conv in convs
        if conv.kernel_frames > 1
    )


def _decoder(config: WanVAEConfig, shape: Mapping[str, int]) -> Iterator[_Conv]:
    """Yield the decoder's convolutions in order."""
    base = config.decoder_base_dim or config.base_dim
    factors = config.dim_mult[::-1]
    dims = [base * factor for factor in (factors[0], *factors)]
    frames, rows, columns = shape["frames"], shape["rows"], shape["columns"]
    yield _Conv(frames, rows, columns, config.z_dim, config.z_dim, 1)
    yield _Conv(frames, rows, columns, config.z_dim, dims[0], 27, 3)
    yield from _middle(frames, rows, columns, dims[0])
    doublings = config.temperal_downsample[::-1]
    for level, (dim_in, dim_out) in enumerate(itertools.pairwise(dims)):
        halved = dim_in // 2 if level > 0 and not config.is_residual else dim_in
        yield from _residuals(frames, rows, columns, halved, dim_out, config.num_res_blocks + 1)
        if level == len(factors) - 1:
            continue
        if doublings[level]:
            yield _Conv(frames, rows, columns, dim_out, 2 * dim_out, 3, 3)
            frames = 2 * frames - int(bool(shape.get("first", 0)))
        rows, columns = 2 * rows, 2 * columns
        yield _Conv(frames, rows, columns, dim_out, dim_out if config.is_residual else dim_out // 2, 9)
    yield _Conv(frames, rows, columns, dims[-1], config.out_channels, 27, 3)


def _encoder(config: WanVAEConfig, shape: Mapping[str, int]) -> Iterator[_Conv]:
    """Yield the encoder's convolutions in order."""
    dims = [config.base_dim * factor for factor in (1, *config.dim_mult)]
    frames = shape["frames"]
    rows, columns = shape["rows"] // config.patch_edge, shape["columns"] // config.patch_edge
    yield _Conv(frames, rows, columns, config.in_channels, dims[0], 27, 3)
    for level, (dim_in, dim_out) in enumerate(itertools.pairwise(dims)):
        yield from _residuals(frames, rows, columns, dim_in, dim_out, config.num_res_blocks)
        if level == len(config.temperal_downsample):
            continue
        rows, columns = rows // 2, columns // 2
        yield _Conv(frames, rows, columns, dim_out, dim_out, 9)
        if config.temperal_downsample[level]:
            frames = -(-frames // 2)
            yield _Conv(frames, rows, columns, dim_out, dim_out, 3, 2)
    yield from _middle(frames, rows, columns, dims[-1])
    yield _Conv(frames, rows, columns, dims[-1], 2 * config.z_dim, 27, 3)
    yield _Conv(frames, rows, columns, 2 * config.z_dim, 2 * config.z_dim, 1)


def _middle(frames: int, rows: int, columns: int, dim: int) -> Iterator[_Conv]:
    yield from _residuals(frames, rows, columns, dim, dim, 2)
    yield _Conv(frames, rows, columns, dim, 3 * dim, 1)
    yield _Conv(frames, rows, columns, dim, dim, 1)


def _residuals(frames: int, rows: int, columns: int, dim_in: int, dim_out: int, count: int) -> Iterator[_Conv]:
    for index in range(count):
        first = dim_in if index == 0 else dim_out
        if first != dim_out:
            yield _Conv(frames, rows, columns, first, dim_out, 1)
        yield _Conv(frames, rows, columns, first, dim_out, 27, 3)
        yield _Conv(frames, rows, columns, dim_out, dim_out, 27, 3)
