"""Spatial tiles of a decode: which latents each one takes, and how their pixels join.

A tile is decoded like a clip of its own, frame chunk by frame chunk with its own cache, so that a runtime can make a
step of each. Frames do not meet in joining: chunks of frames can be joined as they come.

Shapes: B batch rows; C latent channels; P pixel channels; T, H, W frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.models.vae_config import WanVAEConfig

DEFAULT_TILE_PIXELS = 256
"""Edge of a tile, in pixels, as in the reference."""

DEFAULT_STRIDE_PIXELS = 192
"""Pixels from one tile's edge to the next one's, as in the reference; the rest of a tile overlaps."""


@dataclass(frozen=True, slots=True)
class Span:
    """One axis of a tile: latents from `start` up to `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How a frame is cut, the same for all frames.

    Attributes:
        rows: Latent rows of each row of tiles.
        columns: Latent columns of each column of tiles.
        height: Pixel rows of the whole.
        width: Pixel columns of the whole.
        stride: Pixel rows and columns from one tile to the next.
        overlap: Pixel rows and columns at a tile's end that the next tile also has.
        patch_edge: Pixels that share a blending weight along an axis.
    """

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    height: int
    width: int
    stride: tuple[int, int]
    overlap: tuple[int, int]
    patch_edge: int

    @property
    def tiles(self) -> tuple[tuple[Span, Span], ...]:
        """All tiles as rows and columns of latents, in reading order: the order in which `blend_tiles` takes them."""
        return tuple((rows, columns) for rows in self.rows for columns in self.columns)


def plan_tiles(
    config: WanVAEConfig,
    latent_size: tuple[int, int],
    *,
    tile: tuple[int, int] = (DEFAULT_TILE_PIXELS, DEFAULT_TILE_PIXELS),
    stride: tuple[int, int] = (DEFAULT_STRIDE_PIXELS, DEFAULT_STRIDE_PIXELS),
) -> TilePlan:
    """Cut a frame into overlapping tiles.

    Args:
        config: The VAE.
        latent_size: Rows and columns of the latents.
        tile: Rows and columns of a tile, in pixels: multiples of the VAE's spatial factor.
        stride: Rows and columns from one tile to the next, in pixels: multiples too, at most the tile's.

    Returns:
        The plan; one tile if the whole frame fits into one.

    Raises:
        ParameterError: If a tile or stride is off the grid, or the latents are empty.
    """
    factor = config.spatial_factor
    for name, value, limit in (("tile", tile, None), ("stride", stride, tile)):
        _check_grid(name, value, factor, limit)
    if min(latent_size) < 1:
        raise ParameterError(
            "no latents", field="latent_size", value=latent_size, allowed="rows and columns above zero"
        )
    fits = all(size * factor <= edge for size, edge in zip(latent_size, tile, strict=True))
    spans = [
        (Span(0, size),) if fits else _spans(size, edge // factor, apart // factor)
        for size, edge, apart in zip(latent_size, tile, stride, strict=True)
    ]
    return TilePlan(
        rows=spans[0],
        columns=spans[1],
        height=latent_size[0] * factor,
        width=latent_size[1] * factor,
        stride=(latent_size[0] * factor, latent_size[1] * factor) if fits else stride,
        overlap=(tile[0] - stride[0], tile[1] - stride[1]),
        patch_edge=config.patch_edge,
    )


def square_tiles(config: WanVAEConfig, latent_size: tuple[int, int], edge: int) -> TilePlan:
    """Cut a frame into square tiles that overlap by a quarter.

    Args:
        config: The VAE.
        latent_size: Rows and columns of the latents.
        edge: Edge of a tile in pixels, a multiple of four latents; 0 makes one tile of the whole frame.
    """
    if edge:
        return plan_tiles(config, latent_size, tile=(edge, edge), stride=(edge * 3 // 4, edge * 3 // 4))
    whole = (latent_size[0] * config.spatial_factor, latent_size[1] * config.spatial_factor)
    return plan_tiles(config, latent_size, tile=whole, stride=whole)


def smaller_edge(config: WanVAEConfig, latent_size: tuple[int, int], edge: int) -> int:
    """Return the edge of the tiles to go on with where memory was short; 0 if there are no smaller ones.

    Args:
        config: The VAE.
        latent_size: Rows and columns of the latents.
        edge: Edge of the tiles that were too large, in pixels; 0 for whole frames.
    """
    unit = 4 * config.spatial_factor
    before = edge or max(latent_size) * config.spatial_factor
    return min(DEFAULT_TILE_PIXELS, before // 2) // unit * unit


def tile_caches(
    config: WanVAEConfig, latent_size: tuple[int, int], caches: Sequence[FeatureCache], *, before: int, edge: int
) -> tuple[FeatureCache, ...]:
    """Return what each tile remembers, where the frames before were decoded in other tiles, or whole.

    Args:
        config: The VAE.
        latent_size: Rows and columns of the latents.
        caches: What the earlier tiles left behind, in order.
        before: Edge of those tiles; 0 for whole frames.
        edge: Edge of the tiles that are wanted.
    """
    plan = square_tiles(config, latent_size, edge)
    if before == edge and len(caches) == len(plan.tiles):
        return tuple(caches)
    if caches[0].is_empty:
        return tuple(FeatureCache() for _ in plan.tiles)
    whole = _join_caches(square_tiles(config, latent_size, before), caches, config.spatial_factor)
    return tuple(_crop_cache(whole, tile, latent_size) for tile in plan.tiles)


def _join_caches(plan: TilePlan, caches: Sequence[FeatureCache], factor: int) -> FeatureCache:
    """Put the tiles' memories side by side, each up to where the next tile begins."""
    if len(caches) == 1:
        return caches[0]
    num_columns = len(plan.columns)
    slots = []
    for parts in zip(*(cache.slots for cache in caches), strict=True):
        bands = []
        for row, span in enumerate(plan.rows):
            band = list(parts[row * num_columns : (row + 1) * num_columns])
            scale = band[0].shape[3] // (span.stop - span.start)
            height, width = (scale * stride // factor for stride in plan.stride)
            bands.append(torch.cat([part[..., :height, :width] for part in band], dim=4))
        size = (scale * plan.height // factor, scale * plan.width // factor)
        slots.append(torch.cat(bands, dim=3)[..., : size[0], : size[1]])
    return FeatureCache(slots, caches[0].frames_done)


def _crop_cache(cache: FeatureCache, tile: tuple[Span, Span], latent_size: tuple[int, int]) -> FeatureCache:
    rows, columns = tile
    slots = []
    for slot in cache.slots:
        scale = slot.shape[3] // latent_size[0]
        part = slot[..., scale * rows.start : scale * rows.stop, scale * columns.start : scale * columns.stop]
        slots.append(part.clone())
    return FeatureCache(slots, cache.frames_done)


def crop_latents(latents_BCTHW: Tensor, tile: tuple[Span, Span]) -> Tensor:
    """Return a tile's latents, a view."""
    rows, columns = tile
    return latents_BCTHW[:, :, :, rows.start : rows.stop, columns.start : columns.stop]


def blend_tiles(plan: TilePlan, tiles: Sequence[Tensor]) -> Tensor:
    """Join decoded tiles, fading each into its neighbours below and to the right.

    Args:
        plan: From `plan_tiles`.
        tiles: Pixels of each tile, (B, P, T, H', W'), in the order of `plan.tiles`; not changed.

    Returns:
        Pixels of the whole, (B, P, T, H, W), not clamped.

    Raises:
        ParameterError: If tiles are missing.
    """
    num_columns = len(plan.columns)
    if len(tiles) != len(plan.tiles):
        raise ParameterError("wrong number of tiles", field="tiles", value=len(tiles), allowed=str(len(plan.tiles)))
    bands: list[Tensor] = []
    above: list[Tensor] = []
    for start in range(0, len(tiles), num_columns):
        row = list(tiles[start : start + num_columns])
        # A tile meets neighbours that have been blended themselves, also where they will be cut off.
        if above:
            row = [_fade(upper, lower, 3, plan) for upper, lower in zip(above, row, strict=True)]
        for index in range(1, num_columns):
            row[index] = _fade(row[index - 1], row[index], 4, plan)
        bands.append(torch.cat([pixels[..., : plan.stride[0], : plan.stride[1]] for pixels in row], dim=4))
        above = row
    return torch.cat(bands, dim=3)[:, :, :, : plan.height, : plan.width]


def _fade(before: Tensor, after: Tensor, dim: int, plan: TilePlan) -> Tensor:
    """Return `after` with its first pixels along `dim` faded in from the last ones of `before`."""
    length = min(before.shape[dim], after.shape[dim], plan.overlap[dim - 3])
    if length == 0:
        return after
    num_weights = length // plan.patch_edge
    weights = torch.arange(num_weights, dtype=after.dtype, device=after.device) / num_weights
    ramp = weights.repeat_interleave(plan.patch_edge).view(-1, *[1] * (4 - dim))
    old = before.narrow(dim, before.shape[dim] - length, length)
    faded = old * (1.0 - ramp) + after.narrow(dim, 0, length) * ramp
    return torch.cat([faded, after.narrow(dim, length, after.shape[dim] - length)], dim=dim)


def _spans(size: int, edge: int, stride: int) -> tuple[Span, ...]:
    return tuple(Span(start, min(start + edge, size)) for start in range(0, size, stride))


def _check_grid(name: str, value: tuple[int, int], factor: int, limit: tuple[int, int] | None) -> None:
    for index, pixels in enumerate(value):
        largest = None if limit is None else limit[index]
        if pixels >= 1 and pixels % factor == 0 and (largest is None or pixels <= largest):
            continue
        nearest = max(factor, round(pixels / factor) * factor)
        raise ParameterError(
            "off the VAE's grid",
            field=name,
            value=value,
            allowed=f"multiples of {factor}" + ("" if largest is None else f", at most the tile's {largest}"),
            nearest=nearest if largest is None else min(nearest, largest),
        )
