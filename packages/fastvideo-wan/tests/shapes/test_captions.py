"""Captions name what is drawn, in words that the tokenizer knows, and keep a tenth back."""

from __future__ import annotations

import random

from fastvideo_wan.shapes.captions import (
    COLOUR_WORDS,
    MOTION_WORDS,
    SHAPE_WORDS,
    draw_caption,
    is_held_out,
    is_ordered,
)
from fastvideo_wan.shapes.scenes import COLOURS, MOTIONS, SHAPES, draw_scene
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH, UNKNOWN, build_tokenizer


def test_every_kind_has_words() -> None:
    assert set(COLOUR_WORDS) == set(COLOURS)
    assert set(SHAPE_WORDS) == set(SHAPES)
    assert set(MOTION_WORDS) == set(MOTIONS)


def test_a_caption_names_its_scene() -> None:
    rng = random.Random(0)
    for _ in range(200):
        scene = draw_scene(rng)
        caption = draw_caption(scene, rng).lower()
        assert any(word in caption for word in COLOUR_WORDS[scene.colour])
        assert any(word in caption for word in SHAPE_WORDS[scene.shape])
        assert any(word in caption for word in MOTION_WORDS[scene.motion])


def test_held_out_captions_are_a_tenth_and_never_drawn_for_training() -> None:
    rng = random.Random(0)
    scenes = [draw_scene(rng) for _ in range(400)]
    trained = [draw_caption(scene, rng) for scene in scenes]
    kept_back = [draw_caption(scene, rng, is_held_out_wanted=True) for scene in scenes]
    assert not any(map(is_held_out, trained))
    assert all(map(is_held_out, kept_back))
    assert not set(trained) & set(kept_back)
    share = sum(is_held_out(f"{caption} {i}") for i, caption in enumerate(trained)) / len(trained)
    assert 0.05 < share < 0.16


def test_the_tokenizer_knows_every_caption_and_has_room_for_it() -> None:
    tokenizer, rng = build_tokenizer(), random.Random(0)
    for held_out in (False, True):
        for _ in range(300):
            encoding = tokenizer.encode(draw_caption(draw_scene(rng), rng, is_held_out_wanted=held_out))
            assert UNKNOWN not in encoding.tokens
            assert len(encoding.ids) <= TEXT_LENGTH


def test_the_order_of_the_words_matters_where_the_same_words_say_the_opposite() -> None:
    for motion, words in MOTION_WORDS.items():
        for phrase in words:
            others = [other for name, table in MOTION_WORDS.items() if name != motion for other in table]
            has_anagram = any(sorted(other.split()) == sorted(phrase.split()) for other in others)
            assert is_ordered(f"a red disc going {phrase}") == has_anagram
