"""Captions name what is drawn, in words that the tokenizer knows, and keep a tenth back."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path

from fastvideo_wan.shapes.captions import (
    COLOUR_WORDS,
    MOTION_WORDS,
    SHAPE_WORDS,
    draw_caption,
    is_held_out,
    is_ordered,
)
from fastvideo_wan.shapes.scenes import COLOURS, MOTIONS, PAIRS, SHAPES, WIDE, draw_scene
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH, UNKNOWN, build_tokenizer


def test_every_kind_has_words() -> None:
    assert set(COLOUR_WORDS) == set(COLOURS)
    assert set(SHAPE_WORDS) == set(SHAPES)
    assert set(MOTION_WORDS) == set(MOTIONS)


def test_a_caption_names_its_scene() -> None:
    rng = random.Random(0)
    for _ in range(200):
        scene = draw_scene(rng, world=WIDE)
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


def test_a_caption_of_two_names_both_in_words_that_fit() -> None:
    rng, tokenizer = random.Random(4), build_tokenizer()
    for _ in range(300):
        scene = draw_scene(rng, world=PAIRS)
        caption = draw_caption(scene, rng)
        for one, part in zip(scene.objects, caption.lower().split(" and "), strict=True):
            for table, kind in ((COLOUR_WORDS, one.colour), (SHAPE_WORDS, one.shape), (MOTION_WORDS, one.motion)):
                assert any(word in part for word in table[kind]), (caption, kind)
        encoded = tokenizer.encode(caption)
        assert UNKNOWN not in encoded.tokens
        assert len(encoded.ids) <= TEXT_LENGTH


def test_words_that_were_added_leave_the_others_ids() -> None:
    """Shipped text encoders know words by the ids that they were trained with."""
    folder = Path(str(files("fastvideo_wan").joinpath("data", "wan-shapes-causal", "tokenizer")))
    shipped = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    now = build_tokenizer().get_vocab()
    assert {word: index for word, index in shipped.items() if not word.startswith("<spare")}.items() <= now.items()
