"""Captions of scenes in varied wording, some of which is held out from training.

A caption is a frame of words (`FRAMES`) filled with one of several words for each attribute. Whether a caption may be
trained on depends on its text alone (`is_held_out`), so no list has to be kept.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Iterator

from fastvideo_wan.shapes.scenes import PLAIN, Scene

COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "cyan": ("cyan", "turquoise"),
    "blue": ("blue", "cobalt"),
    "purple": ("purple", "violet"),
    "orange": ("orange", "tangerine"),
    "pink": ("pink", "rose"),
}
SHAPE_WORDS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "ball"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
    "diamond": ("diamond", "rhombus"),
    "cross": ("cross", "plus"),
}
VERBS = ("moving", "going", "sliding", "drifting", "gliding", "travelling", "that moves", "which goes", "heading")
MOTION_WORDS: dict[str, tuple[str, ...]] = {
    "right": ("right", "to the right", "rightwards", "from left to right", "towards the right"),
    "left": ("left", "to the left", "leftwards", "from right to left", "towards the left"),
    "up": ("up", "upwards", "to the top", "from bottom to top", "towards the top"),
    "down": ("down", "downwards", "to the bottom", "from top to bottom", "towards the bottom"),
    "up-right": ("to the upper right", "towards the top right", "diagonally up to the right"),
    "up-left": ("to the upper left", "towards the top left", "diagonally up to the left"),
    "down-right": ("to the lower right", "towards the bottom right", "diagonally down to the right"),
    "down-left": ("to the lower left", "towards the bottom left", "diagonally down to the left"),
    "still": ("standing still", "not moving", "at rest", "staying in place", "that does not move", "motionless"),
}
BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "black": ("black", "plain black"),
    "grey": ("grey", "gray", "plain grey"),
    "white": ("white", "plain white"),
    "brown": ("brown", "plain brown"),
}
BACKGROUND_PHRASES = ("on a {} background", "on {}", "against a {} background", "in front of a {} background")
FRAMES: tuple[str, ...] = (
    "{a} {object} {motion} {background}",
    "{a} {object} {background} {motion}",
    "{a} {object} {motion}, {background}",
    "a video of {a2} {object} {motion} {background}",
    "a clip of {a2} {object} {motion} {background}",
    "{background}, {a} {object} {motion}",
    "{object} {motion} {background}",
)
PAIR_FRAMES: tuple[str, ...] = (
    "{first} and {second} {background}",
    "{background}, {first} and {second}",
    "a video of {first} and {second} {background}",
)
HELD_OUT_PERCENT = 10
_WORD = re.compile(r"\w+|[^\w\s]")
MAX_WORDS = 31
"""Words and signs of a caption: what a text encoder of 32 tokens reads of it, besides its end."""


def draw_caption(scene: Scene, rng: random.Random, *, is_held_out_wanted: bool = False) -> str:
    """Return a caption of `scene` in random wording, from the held-out captions or from the others; advances `rng`."""
    while True:
        caption = _compose(scene, rng)
        if is_held_out(caption) == is_held_out_wanted and len(_WORD.findall(caption)) <= MAX_WORDS:
            return caption


def is_held_out(caption: str) -> bool:
    """Return whether a caption must never be trained on: a tenth of all, by a checksum of the text."""
    return zlib.crc32(caption.encode()) % 100 < HELD_OUT_PERCENT


def names_background(caption: str) -> bool:
    """Return whether a caption says what the background is."""
    return any(word in caption.lower() for words in BACKGROUND_WORDS.values() for word in words)


def is_ordered(caption: str) -> bool:
    """Return whether the order of a caption's words says where the object moves."""
    return " from " in f" {caption} "


def _compose(scene: Scene, rng: random.Random) -> str:
    is_pair = scene.second is not None
    words = _words_of_two(scene, rng) if is_pair else _words_of_one(scene, rng)
    words["background"] = ""
    if rng.random() < 0.75:
        words["background"] = rng.choice(BACKGROUND_PHRASES).format(rng.choice(BACKGROUND_WORDS[scene.background]))
    filled = rng.choice(PAIR_FRAMES if is_pair else FRAMES).format(**words)
    caption = " ".join(filled.split()).replace(" ,", ",").strip(", ")
    return caption[0].upper() + caption[1:] + "." if rng.random() < 0.2 else caption


def _words_of_one(scene: Scene, rng: random.Random) -> dict[str, str]:
    return {
        "a": rng.choice(("a", "a", "one", "the")),
        "a2": rng.choice(("a", "one")),
        "object": _object_phrase(scene, rng),
        "motion": _motion_phrase(scene.motion, rng),
    }


def _words_of_two(scene: Scene, rng: random.Random) -> dict[str, str]:
    first, second = (_described(one, rng) for one in scene.objects)
    return {"first": first, "second": second}


def _described(scene: Scene, rng: random.Random) -> str:
    article = rng.choice(("a", "a", "one"))
    return f"{article} {_object_phrase(scene, rng)} {_motion_phrase(scene.motion, rng)}"


def _object_phrase(scene: Scene, rng: random.Random) -> str:
    return f"{rng.choice(COLOUR_WORDS[scene.colour])} {rng.choice(SHAPE_WORDS[scene.shape])}"


def _motion_phrase(motion: str, rng: random.Random) -> str:
    direction = rng.choice(MOTION_WORDS[motion])
    return direction if motion == "still" else f"{rng.choice(VERBS)} {direction}"


def known_words() -> tuple[str, ...]:
    """Return every word and sign that a caption can hold, in lower case.

    Those of the plain world come first, sorted, then those that were added later, sorted: what a model was trained on
    keeps its places when words are added.
    """
    plain = _words_of(_texts(PLAIN.colours, PLAIN.shapes, PLAIN.motions)) | {",", "."}
    added = _words_of([*_texts(tuple(COLOUR_WORDS), tuple(SHAPE_WORDS), tuple(MOTION_WORDS)), *PAIR_FRAMES]) - plain
    return (*sorted(plain), *sorted(added))


def _words_of(texts: Iterable[str]) -> set[str]:
    """Return the words of some texts; what stands in braces is none."""
    return set(re.findall(r"[a-z]+", re.sub(r"{.*?}", " ", " ".join(texts).lower())))


def _texts(colours: Iterable[str], shapes: Iterable[str], motions: Iterable[str]) -> Iterator[str]:
    chosen = (
        (COLOUR_WORDS, colours),
        (SHAPE_WORDS, shapes),
        (MOTION_WORDS, motions),
        (BACKGROUND_WORDS, BACKGROUND_WORDS),
    )
    for table, names in chosen:
        for name in names:
            yield from table[name]
    yield from (*VERBS, *FRAMES, *BACKGROUND_PHRASES, "a", "one", "the")
