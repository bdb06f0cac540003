"""Decoding in tiles and in batches: steps, memory that is short, stored states, and how far pixels may be off."""

from __future__ import annotations

import itertools

import pytest
import torch

from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, OutOfMemory
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import make_generator
from fastvideo_wan.models.vae_cache import FeatureCache
from fastvideo_wan.models.vae_tiling import smaller_edge, square_tiles, tile_caches

# Of one step of 255: what seams may change where tiles are much smaller than any that the command would choose.
MEAN_BOUND, WORST_BOUND = 1.5, 96


class NoTaps:
    is_tapped = False
    blocks_runner = None

    def tap(self, name, value):
        """Drop it."""


@pytest.fixture(scope="module")
def model():
    return load_instance(Catalog.installed().find("wan-shapes"))


@pytest.fixture(scope="module")
def latents(model):
    """Latents of a plain scene: a bright square that moves over a grey ground."""
    vae = model.component("vae")
    pixels = torch.full((1, 3, 9, 128, 96), -0.2)
    for frame in range(9):
        pixels[:, 0, frame, 30:70, 10 + 4 * frame : 50 + 4 * frame] = 0.8
    with torch.no_grad():
        return vae.normalize(vae.encode(pixels).chunk(2, dim=1)[0])


def start(model, latents, *, is_exact=False, **parameters):
    request = build_request(model.card, "x", parameters={"seed": 1, **parameters})
    resolved = prepare_request(model.card, request).parameters
    scope = CancelScope("request", "a").child("loop", "decode")
    asked = LoopRequest("a", "decode", "vae_decode", resolved, {"latents": latents}, scope, is_exact=is_exact)
    loop = model.loop("vae_decode")
    return loop, loop.init(asked, LoopContext(make_generator))


def run(model, plans):
    with torch.no_grad():
        return model.steps["vae_decode"](model, plans, NoTaps())


def finish(model, loop, state, *, before_step=lambda state, plan: state):
    """Decode to the end; return the frames and the plans."""
    plans = []
    while not isinstance(plan := loop.next(state), Done):
        changed = before_step(state, plan)
        if changed is not state:
            state = changed
            continue
        plans.append(plan)
        state = loop.advance(state, run(model, [plan])[0])
    return torch.cat(loop.finalize(state).outputs["frames"]), plans


def check_close(frames, expected):
    assert frames.shape == expected.shape
    off = (frames.int() - expected.int()).abs()
    assert off.float().mean() <= MEAN_BOUND
    assert off.max() <= WORST_BOUND


def with_tiles(model, latents, edge, **options):
    loop, state = start(model, latents, **options)
    state.tile_pixels, state.frames_per_step = edge, 1
    return loop, state


@pytest.mark.parametrize("edge", [64, 96])
def test_tiles_are_steps_and_join_to_the_whole(model, latents, edge):
    expected, _ = finish(model, *start(model, latents))
    frames, plans = finish(model, *with_tiles(model, latents, edge))
    check_close(frames, expected)
    num_tiles = len(square_tiles(model.config("vae"), (16, 12), edge).tiles)
    assert num_tiles > 1
    assert len(plans) == num_tiles * latents.shape[2]
    assert [plan.step_index for plan in plans] == list(range(len(plans)))
    assert {plan.num_steps for plan in plans} == {len(plans)}
    assert [bool(plan.emits) for plan in plans] == ([False] * (num_tiles - 1) + [True]) * latents.shape[2]


def test_a_request_may_ask_for_tiles(model, latents):
    _, state = start(model, latents, vae_tiling=True)
    assert (state.tile_pixels, start(model, latents)[1].tile_pixels) == (256, 0)
    # Its frames are smaller than a tile, so that nothing changes.
    frames, _ = finish(model, *start(model, latents, vae_tiling=True))
    assert torch.equal(frames, finish(model, *start(model, latents))[0])


def test_tiles_have_the_references_pixels(model, latents):
    from diffusers import AutoencoderKLWan

    from fastvideo_core.runtime.weights.locate import locate_components

    folder = locate_components(model.card.checkpoint)["vae"]
    vae = AutoencoderKLWan.from_pretrained(str(folder), subfolder="vae", torch_dtype=torch.float32)
    vae.enable_tiling(64, 64, 48, 48)
    with torch.no_grad():
        expected = vae.decode(model.component("vae").denormalize(latents), return_dict=False)[0]
    expected = ((expected[0].permute(1, 2, 3, 0) / 2 + 0.5).clamp(0, 1) * 255).round()
    frames, _ = finish(model, *with_tiles(model, latents, 64, is_exact=True))
    assert (frames.float() - expected).abs().max() <= 1


def test_short_of_memory_it_takes_fewer_frames_then_smaller_tiles(model, latents):
    loop, state = start(model, latents)
    assert state.frames_per_step == latents.shape[2]
    seen = []
    with pytest.raises(InputError, match="no smaller step"):
        while True:
            state = loop.apply(state, OutOfMemory("full"))
            seen.append((state.frames_per_step, state.tile_pixels, loop.next(state).resources.peak_bytes))
    assert [row[:2] for row in seen] == [(1, 0), (1, 64), (1, 32)]
    peaks = [row[2] for row in seen]
    assert sorted(peaks, reverse=True) == peaks


@pytest.mark.parametrize("at_step", [0, 1, 2])
def test_it_goes_on_with_tiles_from_where_it_was(model, latents, at_step):
    expected, _ = finish(model, *start(model, latents))
    loop, state = start(model, latents)
    state.frames_per_step = 1
    told = []

    def run_short(state, plan):
        if plan.step_index != at_step or len(told) == 2:
            return state
        told.append(plan.step_index)
        return decode_state(encode_state(loop.apply(state, OutOfMemory("full"))), type(state))

    frames, plans = finish(model, loop, state, before_step=run_short)
    check_close(frames, expected)
    assert [plan.payload.tile_pixels for plan in plans[:at_step]] == [0] * at_step
    assert {plan.payload.tile_pixels for plan in plans[at_step:]} == {32}


def test_an_exact_decode_does_not_change_its_bits_for_want_of_memory(model, latents):
    loop, state = start(model, latents, is_exact=True)
    with pytest.raises(InputError, match="exact"):
        loop.apply(state, OutOfMemory("full"))


def test_other_events_are_refused(model, latents):
    loop, state = start(model, latents)
    with pytest.raises(InputError, match="no such event"):
        loop.apply(state, "louder")


def test_a_tiled_state_survives_storage_after_every_step(model, latents):
    expected, _ = finish(model, *with_tiles(model, latents, 64))
    loop, state = with_tiles(model, latents, 64)
    while not isinstance(plan := loop.next(state), Done):
        state = loop.advance(state, run(model, [plan])[0])
        state = decode_state(encode_state(state), type(state))
    assert torch.equal(torch.cat(loop.finalize(state).outputs["frames"]), expected)


def test_memories_of_tiles_join_and_part_again(model):
    # Slots that hold their own coordinates: what is cropped from a joined memory must be in its place.
    config = model.config("vae")
    size, scales = (12, 20), (1, 2, 4)

    def slot(scale):
        rows = torch.arange(size[0] * scale).view(-1, 1) * 1000
        return (rows + torch.arange(size[1] * scale)).expand(1, 2, 2, -1, -1)

    whole = FeatureCache([slot(scale) for scale in scales], 3)
    edges = [0, 96, 64, 32, 64]
    caches = (whole,)
    for before, edge in itertools.pairwise(edges):
        caches = tile_caches(config, size, caches, before=before, edge=edge)
        tiles = square_tiles(config, size, edge).tiles
        assert len(caches) == len(tiles)
        for (rows, columns), cache in zip(tiles, caches, strict=True):
            assert cache.frames_done == 3
            for scale, part, full in zip(scales, cache.slots, whole.slots, strict=True):
                expected = full[
                    ..., scale * rows.start : scale * rows.stop, scale * columns.start : scale * columns.stop
                ]
                assert torch.equal(part, expected)


def test_smaller_edges_lie_on_the_grid(model):
    vae = model.config("vae")
    assert [smaller_edge(vae, (60, 104), edge) for edge in (0, 256, 128, 64, 32)] == [256, 128, 64, 32, 0]
    assert smaller_edge(vae, (8, 8), 0) == 32
    assert smaller_edge(vae, (4, 4), 0) == 0


def test_clips_of_a_batch_decode_as_they_do_alone(model, latents):
    clips = [latents, latents.flip(4), latents * 0.5]
    bound = model.card.parity.batch_max_relative_error
    started = [start(model, clip) for clip in clips]
    for _, state in started:
        state.frames_per_step = 2
    loop, states = started[0][0], [state for _, state in started]
    alone = []
    for clip in clips:
        _, state = start(model, clip)
        state.frames_per_step = 2
        alone.append(finish(model, loop, state)[0])
    sizes = []
    handle = model.component("vae").decoder.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    try:
        while not isinstance(loop.next(states[0]), Done):
            plans = [loop.next(state) for state in states]
            assert len({plan.batch_key for plan in plans}) == 1
            states = [loop.advance(s, r) for s, r in zip(states, run(model, plans), strict=True)]
    finally:
        handle.remove()
    assert sizes == [3, 3]
    for state, expected in zip(states, alone, strict=True):
        frames = torch.cat(loop.finalize(state).outputs["frames"])
        # Bytes round: a pixel may fall on the other side of a half.
        assert (frames.int() - expected.int()).abs().max() <= 1
        assert (frames != expected).float().mean() <= 10 * bound
