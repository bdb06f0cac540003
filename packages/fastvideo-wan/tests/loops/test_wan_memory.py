"""Out of memory in the decode, through the engine: latents are kept, tiles follow, the next request is untouched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastvideo_core.errors import FastVideoError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.loading import load_instance
from fastvideo_wan.models.vae import WanVAE

SIZE = {"num_frames": 9, "height": 96, "width": 80, "num_inference_steps": 2, "seed": 3}


@pytest.fixture
def short_of_memory(monkeypatch):
    """Let decodes of more than so many latents run out of memory, and note them."""
    decode, told = WanVAE.decode_frames, []

    def limited(self, latents, cache, **options):
        if latents.shape[3:].numel() > 100:
            told.append(latents.shape)
            raise torch.OutOfMemoryError("no memory for the decode")
        return decode(self, latents, cache, **options)

    monkeypatch.setattr(WanVAE, "decode_frames", limited)
    return told


def test_a_decode_that_finds_no_memory_goes_on_in_tiles(short_of_memory):
    model = load_instance(Catalog.installed().find("wan-shapes"))
    steps = []
    handle = model.component("transformer").register_forward_pre_hook(lambda *_: steps.append(1))
    with Engine(model) as engine:
        tiled = engine.generate("a red circle", outputs=("video", "latents"), **SIZE)
        num_steps = len(steps)
        small = engine.generate("a red circle", **{**SIZE, "height": 64, "width": 64})
    handle.remove()
    assert short_of_memory
    assert num_steps == SIZE["num_inference_steps"]
    assert tiled.video.frames.shape == (9, 96, 80, 3)
    assert small.video.frames.shape == (9, 64, 64, 3)
    with Engine(model) as engine:
        again = engine.generate("a red circle", outputs=("latents",), **SIZE)
    assert np.array_equal(again.latents.latents, tiled.latents.latents)


def test_an_exact_decode_that_finds_no_memory_ends(short_of_memory):
    model = load_instance(Catalog.installed().find("wan-shapes"))
    with Engine(model) as engine:
        with pytest.raises(FastVideoError, match="memory"):
            engine.generate("a red circle", exact=True, **SIZE)
        assert engine.generate("a red circle", exact=True, **{**SIZE, "height": 64, "width": 64}).video.frames.size
