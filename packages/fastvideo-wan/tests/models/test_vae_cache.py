"""Caches of several clips in one batch."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import StateError
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_wan.models import vae_exact
from fastvideo_wan.models.vae_cache import FeatureCache, Tape, split_cache, stack_caches


def cache_of(value, *, num_rows=1, frames_done=1):
    return FeatureCache(
        [torch.full((num_rows, 2, 2, 1, 1), value), torch.full((num_rows, 3, 1, 1, 1), value)], frames_done
    )


def test_stacking_and_splitting():
    olds = [cache_of(1.0, frames_done=5), cache_of(2.0, num_rows=2, frames_done=1)]
    stacked = stack_caches(olds)
    assert [tuple(slot.shape) for slot in stacked.slots] == [(3, 2, 2, 1, 1), (3, 3, 1, 1, 1)]
    assert stacked.slots[0].flatten(1)[:, 0].tolist() == [1.0, 2.0, 2.0]
    after = split_cache(FeatureCache(stacked.slots, stacked.frames_done + 2), olds, [1, 2])
    assert [cache.frames_done for cache in after] == [7, 3]
    for old, new in zip(olds, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old.slots, new.slots, strict=True))
        assert all(slot.untyped_storage().nbytes() == slot.nbytes for slot in new.slots)


def test_clips_before_their_first_chunk_stack():
    assert stack_caches([FeatureCache(), FeatureCache()]).is_empty
    with pytest.raises(StateError, match="first chunk"):
        stack_caches([FeatureCache(), cache_of(1.0)])


def test_a_tape_reads_in_order_and_copies():
    old, frames = cache_of(1.0), torch.zeros(1, 2, 4, 1, 1)
    tape = Tape(old, vae_exact)
    assert tape.past() is old.slots[0]
    tape.remember(frames[:, :, -2:])
    assert tape.past() is old.slots[1]
    tape.remember(frames[:, :, -1:])
    after = tape.cache_after(4)
    frames += 1.0
    assert after.frames_done == 5
    assert not any(slot.any() for slot in after.slots)
    assert not after.is_empty


def test_a_tape_without_a_cache_remembers_nothing():
    tape = Tape(None, vae_exact)
    tape.remember(torch.zeros(1, 2, 2, 1, 1))
    assert tape.is_first
    assert tape.past() is None
    assert tape.cache_after(3).slots == []


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("num_begun", [1, 2])
def test_a_clip_goes_on_from_a_saved_cache_with_the_same_bits(vae_pair, num_begun, is_exact):
    pair = vae_pair("2.2-shapes")
    latents = pair.draw_latents(4, num_rows=2)
    with torch.no_grad():
        _, cache = pair.model.decode_frames(latents, FeatureCache(), is_exact=is_exact, span=(0, num_begun))
        loaded = decode_state(encode_state(cache), FeatureCache)
        expected, _ = pair.model.decode_frames(latents, cache, is_exact=is_exact, span=(num_begun, 4))
        pixels, after = pair.model.decode_frames(latents, loaded, is_exact=is_exact, span=(num_begun, 4))
    assert torch.equal(pixels, expected)
    assert after.frames_done == 4
