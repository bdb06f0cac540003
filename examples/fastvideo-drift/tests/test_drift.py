"""What the contract suite cannot know: the words, the pixels, and that training teaches something."""

from __future__ import annotations

import pytest
import torch
from fastvideo_drift.model import PATCH, ShifterConfig, to_patches, to_pixels
from fastvideo_drift.training import draw_bars, train
from fastvideo_drift.words import COLOURS, WORDS, word_ids

from fastvideo_core import Engine
from fastvideo_core.errors import InputWarning


def test_patches_and_pixels_are_inverse():
    pixels = torch.randint(0, 256, (1, 3, 8, 12, 3), generator=torch.Generator().manual_seed(0))
    patches = to_patches(pixels / 127.5 - 1)
    assert patches.shape == (1, 3 * PATCH**2, 3, 2, 3)
    assert torch.equal(to_pixels(patches).long(), pixels[0])


def test_bars_are_what_their_words_say():
    videos, words = draw_bars(12, torch.Generator().manual_seed(0))
    for video, (colour, drift) in zip(videos, words, strict=True):
        paint = torch.tensor(COLOURS[WORDS[colour]]) * 2 - 1
        is_bar_TX = torch.isclose(video[:, 0], paint).all(dim=-1)
        assert is_bar_TX.sum(dim=1).tolist() == [8] * 9
        move = {"left": -1, "still": 0, "right": 1}[WORDS[drift]]
        assert torch.equal(is_bar_TX[1:], is_bar_TX[:-1].roll(move, dims=1))


def test_only_known_words_count():
    assert [WORDS[index] for index in word_ids("A Red bar, drifting RIGHT quickly")] == ["red", "right"]


def test_training_teaches_colours(tmp_path):
    errors = []
    card = train(
        tmp_path / "weights", num_steps=60, config=ShifterConfig(width=28, num_blocks=2),
        on_step=lambda step, error: errors.append(error),
    )  # fmt: skip
    assert sum(errors[-10:]) < sum(errors[:10]) / 4
    with Engine.open(card) as engine:
        red, blue = (
            engine.generate(f"a {colour} bar", seed=1).video.frames.reshape(-1, 3).mean(axis=0)
            for colour in ("red", "blue")
        )
        assert red[0] > blue[0] + 5
        assert blue[2] > red[2] + 5
        with pytest.warns(InputWarning, match="no word of the prompt is known"):
            engine.generate("something purple", num_inference_steps=1)
        with pytest.warns(InputWarning, match="names 2 colours"):
            engine.generate("a red and blue bar", num_inference_steps=1)
