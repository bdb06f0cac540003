"""Tiled decodes against diffusers' tiling of the same checkpoints."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.models.vae_tiling import Span, blend_tiles, crop_latents, plan_tiles

BOUND = 1e-5


def relative_error(value, expected):
    return ((value - expected).norm() / expected.norm()).item()


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def decode_tiled(vae, latents, plan):
    tiles = [vae.decode_frames(crop_latents(latents, tile), FeatureCache())[0] for tile in plan.tiles]
    return blend_tiles(plan, tiles)


def decode_reference_tiled(reference, latents, tile, stride):
    reference.enable_tiling(*tile, *stride)
    try:
        return reference.decode(latents).sample
    finally:
        reference.use_tiling = False


@pytest.mark.parametrize(
    ("grid", "tile", "stride"),
    [
        ((7, 6), (4, 4), (3, 3)),  # overlapping by one
        ((7, 9), (5, 4), (2, 3)),  # overlapping by more than half; a last tile smaller than the overlap
        ((4, 7), (4, 4), (4, 4)),  # no overlap
        ((3, 8), (4, 4), (2, 3)),  # one axis fits into a tile and is cut nevertheless
        ((4, 4), (4, 4), (3, 3)),  # all fits
    ],
)
@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_tiles_join_as_the_references_do(vae_pair, variant, grid, tile, stride):
    pair = vae_pair(variant)
    factor = pair.model.config.spatial_factor
    tile, stride = [tuple(edge * factor for edge in edges) for edges in (tile, stride)]
    latents = pair.draw_latents(2, grid=grid)
    plan = plan_tiles(pair.model.config, grid, tile=tile, stride=stride)
    decoded = decode_tiled(pair.model, latents, plan)
    expected = decode_reference_tiled(pair.reference, latents, tile, stride)
    assert decoded.shape == expected.shape
    assert relative_error(decoded.clamp(-1, 1), expected) < BOUND


def test_chunks_of_frames_join_as_they_come(vae_pair):
    pair = vae_pair("2.2-shapes")
    latents, plan = (
        pair.draw_latents(3, grid=(5, 5)),
        plan_tiles(pair.model.config, (5, 5), tile=(24, 24), stride=(16, 16)),
    )
    caches, parts = [FeatureCache() for _ in plan.tiles], []
    for start, stop in ((0, 1), (1, 3)):
        tiles = []
        for index, tile in enumerate(plan.tiles):
            pixels, caches[index] = pair.model.decode_frames(
                crop_latents(latents, tile), caches[index], span=(start, stop)
            )
            tiles.append(pixels)
        parts.append(blend_tiles(plan, tiles))
    whole = decode_tiled(pair.model, latents, plan)
    assert relative_error(torch.cat(parts, dim=2), whole) < BOUND


def test_a_blend_fades_evenly_and_changes_no_tile():
    config = WanVAEConfig.from_diffusers({})
    plan = plan_tiles(config, (2, 3), tile=(16, 16), stride=(16, 8))
    assert plan.columns == (Span(0, 2), Span(1, 3), Span(2, 3))
    tiles = [torch.full((1, 1, 1, 16, width), value) for width, value in ((16, 0.0), (16, 1.0), (8, 1.0))]
    joined = blend_tiles(plan, tiles)
    assert joined.shape == (1, 1, 1, 16, 24)
    expected = [*[0.0] * 8, *[step / 8 for step in range(8)], *[1.0] * 8]
    assert joined[0, 0, 0].tolist() == [expected] * 16
    assert tiles[1].eq(1.0).all()


def test_the_defaults_are_the_references(vae_pair):
    reference = vae_pair("2.1").reference
    plan = plan_tiles(vae_pair("2.1").model.config, (40, 40))
    assert plan.rows == (Span(0, 32), Span(24, 40))
    assert plan.stride == (reference.tile_sample_stride_height, reference.tile_sample_stride_width)
    assert plan.overlap == (64, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": (20, 16)}, "tile=\\(20, 16\\).*multiples of 8; nearest: 16"),
        ({"tile": (0, 16)}, "tile.*nearest: 8"),
        ({"tile": (16, 16), "stride": (24, 16)}, "stride.*at most the tile's 16; nearest: 16"),
        ({"tile": (16, 16), "stride": (8, 4)}, "stride.*multiples of 8"),
    ],
)
def test_tiles_off_the_grid_are_refused(options, message):
    with pytest.raises(ParameterError, match=message):
        plan_tiles(WanVAEConfig.from_diffusers({}), (8, 8), **options)


def test_empty_latents_and_missing_tiles_are_refused():
    config = WanVAEConfig.from_diffusers({})
    with pytest.raises(ParameterError, match="latent_size"):
        plan_tiles(config, (0, 8))
    with pytest.raises(ParameterError, match="tiles=1.*allowed: 2"):
        blend_tiles(plan_tiles(config, (2, 4), tile=(16, 16), stride=(16, 16)), [torch.zeros(1, 1, 1, 16, 16)])
