"""Captions of scenes in varied wording, some of which is held out from training.

A caption is a frame of words (`FRAMES`) filled with one of several words for each attribute. Whether a caption may be
trained on depends on its text alone (`is_held_out`), so no list has to be kept.
"""

from __future__ import annotations

import random
import zlib

from fastvideo_wan.shapes.scenes import Scene

COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "cyan": ("cyan", "turquoise"),
    "blue": ("blue", "cobalt"),
    "purple": ("purple", "violet"),
}
SHAPE_WORDS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "ball"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
}
VERBS = ("moving", "going", "sliding", "drifting", "gliding", "travelling", "that moves", "which goes", "heading")
MOTION_WORDS: dict[str, tuple[str, ...]] = {
    "right": ("right", "to the right", "rightwards", "from left to right", "towards the right"),
    "left": ("left", "to the left", "leftwards", "from right to left", "towards the left"),
    "up": ("up", "upwards", "to the top", "from bottom to top", "towards the top"),
    "down": ("down", "downwards", "to the bottom", "from top to bottom", "towards the bottom"),
    "still": ("standing still", "not moving", "at rest", "staying in place", "that does not move", "motionless"),
}
BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "black": ("black", "plain black"),
    "grey": ("grey", "gray", "plain grey"),
    "white": ("white", "plain white"),
    "brown": ("brown", "plain brown"),
}
BACKGROUND_PHRASES = ("on a {} background", "on {}", "against a {} background", "in front of a {} background")
FRAMES = (
    "{a} {object} {motion} {background}",
    "{a} {object} {background} {motion}",
    "{a} {object} {motion}, {background}",
    "a video of {a2} {object} {motion} {background}",
    "a clip of {a2} {object} {motion} {background}",
    "{background}, {a} {object} {motion}",
    "{object} {motion} {background}",
)
HELD_OUT_PERCENT = 10


def draw_caption(scene: Scene, rng: random.Random, *, is_held_out_wanted: bool = False) -> str:
    """Return a caption of `scene` in random wording, from the held-out captions or from the others; advances `rng`."""
    while True:
        caption = _compose(scene, rng)
        if is_held_out(caption) == is_held_out_wanted:
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
    words = {
        "a": rng.choice(("a", "a", "one", "the")),
        "a2": rng.choice(("a", "one")),
        "object": f"{rng.choice(COLOUR_WORDS[scene.colour])} {rng.choice(SHAPE_WORDS[scene.shape])}",
        "motion": _motion_phrase(scene.motion, rng),
        "background": "",
    }
    if rng.random() < 0.75:
        words["background"] = rng.choice(BACKGROUND_PHRASES).format(rng.choice(BACKGROUND_WORDS[scene.background]))
    caption = " ".join(rng.choice(FRAMES).format(**words).split()).replace(" ,", ",").strip(", ")
    return caption[0].upper() + caption[1:] + "." if rng.random() < 0.2 else caption


def _motion_phrase(motion: str, rng: random.Random) -> str:
    direction = rng.choice(MOTION_WORDS[motion])
    return direction if motion == "still" else f"{rng.choice(VERBS)} {direction}"


def known_words() -> tuple[str, ...]:
    """Return every word and sign that a caption can hold, in lower case, sorted."""
    texts = [text for texts in _all_texts() for text in texts]
    letters = "".join(c if c.isalpha() else " " for c in " ".join(texts).lower())
    return tuple(sorted(set(letters.split()) | {",", "."}))


def _all_texts() -> list[tuple[str, ...]]:
    tables = (COLOUR_WORDS, SHAPE_WORDS, MOTION_WORDS, BACKGROUND_WORDS)
    frames = tuple(" ".join(w for w in f.split() if "{" not in w) for f in FRAMES)
    phrases = tuple(p.replace("{}", "") for p in BACKGROUND_PHRASES)
    return [v for table in tables for v in table.values()] + [VERBS, frames, phrases, ("a", "one", "the")]
